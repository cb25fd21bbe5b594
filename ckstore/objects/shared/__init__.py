"""What a store does where the filesystem is one of a cluster: replace by two renames, and free after a grace."""
