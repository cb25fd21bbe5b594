"""Drop checkpoints and free what no checkpoint needs: retention, delete, gc."""
