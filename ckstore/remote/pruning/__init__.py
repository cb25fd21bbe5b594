"""Deleting from a remote: unreferenced blobs, and leftovers of dead pushes. Source: docs/format/remote-v1.md."""
