"""Make system calls, with one module for each family of calls. Almost all code that changes files is here.

Callers import the modules and call `files.create_blob(...)` or `links.link(...)`, so that tests can replace a function.

Unless a docstring says otherwise, functions raise `OSError` if a system call fails.
"""
