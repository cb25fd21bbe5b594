"""Kills and failing system calls, at every point of every scenario."""
