"""Create, open, recover and rebuild a store."""
