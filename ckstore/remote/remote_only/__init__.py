"""Bytes that only a remote has: let go, listed, and read through."""
