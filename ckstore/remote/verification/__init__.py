"""Verification of remotes."""
