"""Objects of a remote that hold more than one client writes: what the remote is, and what is on its way out of it."""
