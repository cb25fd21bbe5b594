"""Loads into existing objects: targets are compared, renamed and filled in place."""
