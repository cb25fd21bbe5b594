"""Blobs, stagings, published checkpoints and trash, as directories and hardlinks; no torch, no SQLite.

Unless a docstring says otherwise, functions raise `OSError` when the system refuses, `DamagedBlob` for bytes that
are wrong or missing, `NewerFormat` for what a newer ckstore wrote, and `InUse` where a lock is not free.
"""
