"""What stands beside a manifest: annotations, marks, pins, tags, refs."""
