"""Records, plans and reports of the copies of checkpoints on remotes."""
