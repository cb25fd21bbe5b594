"""System calls, one module for each family. Almost all changes of files are made here.

Callers import the modules and call `files.create_blob(...)` or `links.link(...)`, so that tests can replace a function.

Unless a docstring says otherwise, functions raise `OSError` if a system call fails.
"""
