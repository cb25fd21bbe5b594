"""Checkpoints that several processes make together: each stages its part, one joins and publishes them."""
