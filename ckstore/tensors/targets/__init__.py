"""Read a checkpoint into what is there: targets are compared, renamed and filled in place."""
