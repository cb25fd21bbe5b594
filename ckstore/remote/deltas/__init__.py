"""Encoded forms for transfers: differences to what the other side already has. See docs/adr/0024."""
