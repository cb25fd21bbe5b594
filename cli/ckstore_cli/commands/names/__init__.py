"""Commands about the names and notes of a checkpoint."""
