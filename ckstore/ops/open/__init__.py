"""Make, open, recover and rebuild a store."""
