"""Files of known formats, cut where their tensors and records begin and end; nothing of them is ever run.

Unless a docstring says otherwise, functions raise `Refused` or `BadInput` for a file that is not as its format says.
"""
