"""Background saves: one saver process per trainer, which makes checkpoints from snapshots.

Unless a docstring says otherwise, functions raise `SaveFailed` for a save that did not happen.
"""
