"""Ckstore on the machines that people run it on: as root, in containers, under limits of memory and quotas of space."""
