"""Drop checkpoints and free the data that no checkpoint needs: retention, delete, gc."""
