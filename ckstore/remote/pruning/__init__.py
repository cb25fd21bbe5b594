"""Deletes unreferenced blobs and leftovers of dead pushes from a remote. Source: docs/format/remote-v1.md."""
