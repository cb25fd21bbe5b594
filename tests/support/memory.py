"""A place in memory, for tests in which many small fsyncs would only wait for the disk."""

from __future__ import annotations

import os

_MEMORY = "/dev/shm"
_LEAST_BYTES = 512 * 2**20


def memory_folder(least_bytes: int = _LEAST_BYTES) -> str | None:
    """Return a folder in memory with room for small stores; None (the usual place) where there is none.

    Args:
        least_bytes: How much must be free, both in the folder and of the machine's memory.
    """
    if not os.access(_MEMORY, os.W_OK):
        return None
    status = os.statvfs(_MEMORY)
    programs_run = not status.f_flag & os.ST_NOEXEC
    free_bytes = min(status.f_bavail * status.f_frsize, _available_bytes())
    return _MEMORY if programs_run and free_bytes >= least_bytes else None


def _available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) * 1024
