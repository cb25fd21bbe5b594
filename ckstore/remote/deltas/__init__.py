"""Encoded forms for transfers: differences from data that the receiver already has. See docs/adr/0024."""
