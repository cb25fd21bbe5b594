"""Commands that move checkpoints to remotes and back."""
