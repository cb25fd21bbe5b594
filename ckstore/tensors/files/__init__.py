"""States as files that torch itself reads: pickles, and the metadata of distributed checkpoints."""
