"""Commands for tags, pins, metrics, notes and names of runs."""
