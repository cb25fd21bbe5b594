"""Read and write small documents of a store and its checkpoints: annotations, pins, marks, times of verification."""
