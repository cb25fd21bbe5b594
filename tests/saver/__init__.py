"""Saves in the background: what they promise whatever happens to the saver, the trainer and the storage."""
