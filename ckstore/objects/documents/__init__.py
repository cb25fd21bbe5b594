"""The small documents of a store and its checkpoints: annotations, pins, marks of damage, times of verification."""
