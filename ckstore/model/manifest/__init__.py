"""The manifest of a checkpoint, with its state, files and facts."""
