"""Removing from a remote: blobs that nothing names, and what dead pushes left. Source: docs/format/remote-v1.md."""
