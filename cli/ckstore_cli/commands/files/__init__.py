"""Commands that take files into a store and out of it."""
