"""System calls, one module for each family. Almost all changes of files are made here.

Callers import the modules and call `files.write_blob(...)` or `links.link(...)`, so that a test can replace a function.

Unless a docstring says otherwise, functions raise `OSError` if a system call fails.
"""
