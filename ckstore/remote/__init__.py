"""Remotes: object storage and other stores from which checkpoints are read, or to which they are pushed."""
