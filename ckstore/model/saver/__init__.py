"""Background saves: what trainer and saver say to each other, and what a saver is seen to do."""
