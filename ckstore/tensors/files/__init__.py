"""States as files that torch reads itself: their pickles, and the metadata of its distributed checkpoints."""
