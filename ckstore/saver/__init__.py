"""Background saves: one saver process a trainer, which takes a snapshot and makes a checkpoint of it."""
