"""The values of copies on remotes: records, plans and reports."""
