"""Record which blobs of a checkpoint only remotes have, and read their pieces."""
