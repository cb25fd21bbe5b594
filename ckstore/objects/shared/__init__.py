"""What a store does where the filesystem is one of a cluster: replace without an exchange of names."""
