"""Reports: what an act did or would do."""
