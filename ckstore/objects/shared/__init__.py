"""Free data only after a grace period, if other hosts use the filesystem of a store."""
