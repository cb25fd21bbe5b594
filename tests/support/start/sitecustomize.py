"""What every Python that a test starts does first: see `tests/conftest.py`, which puts this folder on PYTHONPATH.

Modules are no garbage. To look for some among the million objects that torch makes when it is imported, and once more
at the end, is a quarter of the time of a process that imports torch, and a third of one that trains.
"""

import atexit
import gc

gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)
