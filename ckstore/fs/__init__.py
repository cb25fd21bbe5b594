"""System calls, one function a family; the only place that changes files, and the seam for faults.

Callers import the modules and call `files.write_blob(...)`, `links.link(...)`, so that a test may put another
function in its place.

Unless a docstring says otherwise, functions raise `OSError` when the system refuses.
"""
