"""Commands that drop checkpoints and free their bytes."""
