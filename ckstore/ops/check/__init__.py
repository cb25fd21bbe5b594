"""Judge whether a checkpoint is whole, and remember what was found."""
