"""Documents of a remote that several clients write: its description, claims, owners of runs, and marked blobs."""
