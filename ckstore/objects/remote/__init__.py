"""Blobs of a checkpoint that only remotes have: their record, and reads of their pieces."""
