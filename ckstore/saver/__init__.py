"""Save in the background: each trainer has one saver process, which writes checkpoints from snapshots.

Unless a docstring says otherwise, functions raise `SaveFailed` if a save failed.
"""
