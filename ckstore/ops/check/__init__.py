"""Check whether a checkpoint is complete, and record damage."""
