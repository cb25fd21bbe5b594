"""Reports on the results of operations and of dry runs."""
