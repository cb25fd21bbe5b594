"""Other places that keep a store's checkpoints: object storage, and stores in other directories."""
