"""Cut files of known formats at the boundaries of their tensors and records, without running any code in the files.

Unless a docstring says otherwise, functions raise `Refused` or `BadInput` for a file that does not follow its format.
"""
