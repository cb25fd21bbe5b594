"""Read checkpoints: load, checkout, export, diff."""
