"""Blobs, stagings, published checkpoints and trash, as directories and hardlinks; no torch, no SQLite."""
