"""One module a framework. Importing this package imports none of them; each module imports its own."""
