"""Evicts checkpoints to a remote, lists and reads evicted checkpoints, and repairs damage with copies on remotes."""
