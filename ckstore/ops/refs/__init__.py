"""Find, hold, name and annotate checkpoints."""
