"""In the trainer: the snapshot, the process of the saver, and what is known of its saves. No disk of a store."""
