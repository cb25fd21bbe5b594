"""One module for each framework. Importing this package imports no framework, and each module imports its own."""
