"""Compute the memory that this process can still allocate, from limits and counts of the kernel."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import NamedTuple

from ckstore.model.sizes import size_text

_MEMINFO = "/proc/meminfo"
_OWN_GROUPS = "/proc/self/cgroup"
_MOUNTS = "/proc/self/mountinfo"
_NO_LIMIT_BYTES = 2**62
"""A limit of this many bytes or more means that the control group has no limit. Version 1 then reports almost 2**63."""


class _Files(NamedTuple):
    """The names of the files of a control group for limit and usage, and the names of cache counts in `memory.stat`."""

    limit: str
    used: str
    cache: tuple[str, ...]


_VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_VERSION_2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))


class Left(NamedTuple):
    """The remaining memory under one limit."""

    nbytes: int
    where: str  # the name of the limit, as the end of a sentence

    def __str__(self) -> str:
        return f"{size_text(self.nbytes)} are available {self.where}"


def left() -> Left | None:
    """Return the memory that remains under the tightest limit, or None if no limit is known.

    Page cache counts as free, and so does the swap space of the machine.
    """
    found = []
    machine = _numbers(_MEMINFO)
    if "MemAvailable:" in machine:
        found.append(Left((machine["MemAvailable:"] + machine.get("SwapFree:", 0)) * 1024, "on this machine"))
    found += _of_groups()
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read("/proc/self/statm").split()
    if most != resource.RLIM_INFINITY and pages:
        left_bytes = max(0, most - int(pages[0]) * resource.getpagesize())
        found.append(Left(left_bytes, "below this process's limit of addresses (ulimit -v)"))
    return min(found, default=None)


def _of_groups() -> Iterator[Left]:
    """Yield the remaining memory of each control group of this process (version 1 or 2), and of each parent group."""
    own = [line.split(":", 2) for line in _read(_OWN_GROUPS).splitlines()]
    for root, mount, kind, options in _mounts():
        # On a host with both versions, only one of the two trees has the memory controller.
        if kind == "cgroup2":
            files, paths = _VERSION_2, [path for _, names, path in own if not names]
        else:
            files, paths = _VERSION_1, [path for _, names, path in own if "memory" in names.split(",")]
        if not paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        path = paths[0]
        # In a container, the mount shows only a part of the tree, but the path of the group may be that on the host.
        inner = f"{path}/".removeprefix(f"{root}/".replace("//", "/")) if f"{path}/".startswith(root) else ""
        names = [name for name in inner.split("/") if name]
        # The limits of all parent groups apply as well.
        for depth in range(len(names), -1, -1):
            yield from _of_group("/".join((mount, *names[:depth])), files)


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """Yield the mounts of control groups: root in the tree, mount point, type and controllers."""
    for line in _read(_MOUNTS).splitlines():
        about, _, filesystem = line.partition(" - ")
        fields, kind_source_options = about.split(" "), filesystem.split(" ")
        if kind_source_options[0] in ("cgroup", "cgroup2") and len(fields) > 4 and len(kind_source_options) > 2:
            yield fields[3], fields[4].replace(r"\040", " "), kind_source_options[0], kind_source_options[2]


def _of_group(folder: str, files: _Files) -> Iterator[Left]:
    most, used = _read(f"{folder}/{files.limit}").strip(), _read(f"{folder}/{files.used}").strip()
    if most.isdigit() and used.isdigit() and int(most) < _NO_LIMIT_BYTES:
        known = _numbers(f"{folder}/memory.stat")
        # The kernel drops page cache before it kills a process of the group, so cached files count as free.
        cached = sum(known.get(name, 0) for name in files.cache)
        yield Left(max(0, int(most) - int(used) + cached), f"in the control group {folder}, whose limit is {most}")


def _numbers(path: str) -> dict[str, int]:
    """Return the lines of a file that consist of a name and a number."""
    lines = (line.split() for line in _read(path).splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1 and fields[1].isdigit()}


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:  # the kernel has no such file, this user may not read it, or the group was removed
        return ""
