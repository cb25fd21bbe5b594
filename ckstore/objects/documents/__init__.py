"""The small documents of a store and of its checkpoints: annotations, pins, marks of damage, times of verifying."""
