"""Keep blobs, stagings, published checkpoints and trash as directories and hardlinks, without torch and SQLite.

Unless a docstring says otherwise, functions raise `OSError` if a system call fails, `DamagedBlob` for wrong or missing
bytes, `NewerFormat` for files of a newer ckstore, and `InUse` if a lock is not free.
"""
