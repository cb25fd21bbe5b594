"""One module for each framework. Importing this package imports no framework. Each module imports its framework."""
