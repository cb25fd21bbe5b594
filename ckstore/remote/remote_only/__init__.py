"""Checkpoints whose bytes only a remote has: eviction, listing and reading."""
