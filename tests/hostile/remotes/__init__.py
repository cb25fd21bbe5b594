"""Remotes that another user made: what they hold, what they answer, and a victim who uses them."""
