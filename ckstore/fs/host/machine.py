"""Read facts that the kernel reports about this machine: dirty pages, read-ahead, links, leases, reflinks."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from pathlib import Path

from ckstore.fs import files, holders, reflink
from ckstore.fs.dirfd_stat import AnyPath
from ckstore.model.host import DirtyFacts

_VM = Path("/proc/sys/vm")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return an id of the current boot of this machine, or ``unknown`` if the kernel provides none."""
    return _text(_BOOT_ID).strip() or "unknown"


def dirty_pages() -> DirtyFacts:
    """Return the unwritten bytes of all programs, and the limit at which the kernel blocks writers; 0 if unknown."""
    known_bytes = {}
    for line in _text(Path("/proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        fields = value.split()
        if fields and fields[0].isdigit():
            known_bytes[name] = int(fields[0]) * 1024
    limit_bytes = _number(_VM / "dirty_bytes")
    if not limit_bytes:
        # `dirty_ratio` is a percentage of the available memory, which is free pages and the page cache.
        usable_bytes = known_bytes.get("MemAvailable", 0)
        limit_bytes = usable_bytes * (_number(_VM / "dirty_ratio") or 0) // 100
    return DirtyFacts(known_bytes.get("Dirty", 0), known_bytes.get("Writeback", 0), limit_bytes)


def read_ahead_kib(path: Path) -> int | None:
    """Return the read-ahead size of the device of `path`, or None if there is no device or it is not visible."""
    st_dev = os.stat(path).st_dev
    here = Path(f"/sys/dev/block/{os.major(st_dev)}:{os.minor(st_dev)}")
    for queue in (here / "queue", here / ".." / "queue"):  # a partition uses the queue of its disk
        found = _number(Path(os.path.realpath(queue)) / "read_ahead_kb")
        if found is not None:
            return found
    return _number(Path(f"/sys/class/bdi/{os.major(st_dev)}:{os.minor(st_dev)}/read_ahead_kb"))


def link_limit(path: Path) -> int:
    """Return the number of names that a file in `path` may have, or 0 if the system does not report it."""
    try:
        limit = os.pathconf(path, "PC_LINK_MAX")
    except (OSError, ValueError):
        return 0
    return max(limit, 0)


def open_files_limit() -> int:
    """Return the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def lease_support(path: AnyPath) -> str:
    """Return whether leases work on the regular file `path`.

    ``yes``: a lease was granted. ``held``: leases work, but a process has the file open. ``no``: no lease is possible.
    """
    words = {holders.Holding.FREE: "yes", holders.Holding.HELD: "held", holders.Holding.UNKNOWN: "no"}
    return words[holders.holding_of(path)]


def can_reflink(directory: AnyPath) -> bool | None:
    """Test with two unnamed files whether files in `directory` can share blocks. Return None if the test failed."""
    with ExitStack() as opened:
        try:
            one, other = (
                opened.enter_context(files.opened(directory, os.O_TMPFILE | os.O_RDWR | os.O_NOFOLLOW))
                for _ in range(2)
            )
            files.write_all(one, memoryview(bytes(reflink.BLOCK_BYTES)))
            return reflink.try_share(one, 0, reflink.BLOCK_BYTES, other, 0)
        except OSError:  # no space, no write permission, or no support for O_TMPFILE
            return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None
