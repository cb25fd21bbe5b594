"""Conversion of states to leaves and storages, and back.

Only this package, `integrations` and `training` import torch. This package imports torch and NumPy only if a state
needs them.

Unless a docstring says otherwise, functions raise `CannotStore` for a value that the format does not support,
`BadInput` for a target or a file that does not fit, and `MemoryError` if memory cannot be allocated.
"""
