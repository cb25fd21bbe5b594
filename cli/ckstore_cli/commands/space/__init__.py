"""Commands that delete or restore checkpoints, free space and compact checkpoints."""
