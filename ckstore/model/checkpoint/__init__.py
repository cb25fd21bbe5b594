"""Data of a checkpoint outside its manifest: annotations, marks, pins, tags and refs."""
