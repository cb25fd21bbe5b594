"""A place in memory, for tests in which many small fsyncs would only wait for the disk."""

from __future__ import annotations

import os

_MEMORY = "/dev/shm"
_LEAST_BYTES = 512 * 2**20


def memory_folder() -> str | None:
    """Return a folder in memory with room for small stores; None (the usual place) where there is none."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    status = os.statvfs(_MEMORY)
    return _MEMORY if status.f_bavail * status.f_frsize >= _LEAST_BYTES else None
