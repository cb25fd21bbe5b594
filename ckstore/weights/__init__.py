"""Publishes weights for rollout engines as numbered versions in a directory (docs/how-to/publish-weights.md)."""
