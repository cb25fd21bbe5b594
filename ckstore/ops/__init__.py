"""The verbs of the store, one a module."""
