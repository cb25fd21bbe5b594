"""Write checkpoints: save a state, commit files."""
