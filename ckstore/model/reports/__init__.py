"""What users are told that an act did or would do."""
