"""Weights for rollout engines: numbered versions in a directory (docs/how-to/publish-weights.md)."""
