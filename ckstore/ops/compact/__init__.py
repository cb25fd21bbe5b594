"""Compaction: checkpoints of a run become differences to newer ones; what they hold does not change (docs/adr/0020)."""
