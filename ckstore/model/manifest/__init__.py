"""What a checkpoint is: the manifest, its state, files and facts."""
