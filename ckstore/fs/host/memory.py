"""How much memory this process may still take, as the kernel tells it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return how many bytes are available before the kernel has to kill a process; None where it does not say.

    What the page cache has and swap count as free: of the machine, and of each control group that has a limit.
    """
    return min((found for found in (_of_machine(), *_of_groups(), _of_limit()) if found is not None), default=None)


def _of_machine() -> int | None:
    known = _numbers(_MEMINFO)
    if "MemAvailable:" not in known:
        return None
    return (known["MemAvailable:"] + known.get("SwapFree:", 0)) * 1024


def _of_groups() -> Iterator[int]:
    """Yield what is left in the control group of this process, and in those around it (version 2 alone)."""
    own = next((line[3:] for line in _read(_OWN_GROUPS).splitlines() if line.startswith("0::")), "")
    group = _GROUPS / own.strip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(_GROUPS):
            return
        most, used = _read(folder / "memory.max").strip(), _read(folder / "memory.current").strip()
        if most.isdigit() and used.isdigit():
            cached = _numbers(folder / "memory.stat")
            yield int(most) - int(used) + cached.get("inactive_file", 0) + cached.get("active_file", 0)


def _of_limit() -> int | None:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read(Path("/proc/self/statm")).split()
    if most == resource.RLIM_INFINITY or not pages:
        return None
    return most - int(pages[0]) * resource.getpagesize()


def _numbers(path: Path) -> dict[str, int]:
    """Return the lines of a file that are a name and a number."""
    lines = (line.split() for line in _read(path).splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1 and fields[1].isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:  # not this kernel, not this user, or no such group any more
        return ""
