"""States to leaves and storages, and back.

The only room that imports torch or NumPy, and only when a state needs them.
"""
