"""Rules of a store on a filesystem that other hosts use: data is freed after a grace period."""
