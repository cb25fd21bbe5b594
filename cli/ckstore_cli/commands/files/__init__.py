"""Commands that commit files to a store, check them out and export checkpoints."""
