"""Compaction: store checkpoints of a run as differences to newer ones, with unchanged content (docs/adr/0020)."""
