"""Verifications of remotes."""
