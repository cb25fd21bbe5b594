"""Compact checkpoints: store them as differences from newer checkpoints, with unchanged content (docs/adr/0020)."""
