"""Find, lock, name and annotate checkpoints."""
