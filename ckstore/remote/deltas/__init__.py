"""Encoded forms for transfers: differences to data that the other side already has. See docs/adr/0024."""
