"""Encoded forms on the way to and from a remote: the difference to what the other side has. See docs/adr/0024."""
