"""Files of known formats, cut at the boundaries of their tensors and records. Nothing in them is ever run.

Unless a docstring says otherwise, functions raise `Refused` or `BadInput` for a file that does not follow its format.
"""
