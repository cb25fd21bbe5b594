"""Background saves: the messages between trainer and saver, and the status of a saver."""
