"""Background saves: one saver process a trainer, which takes a snapshot and makes a checkpoint of it.

Unless a docstring says otherwise, functions raise `SaveFailed` for a save that did not happen.
"""
