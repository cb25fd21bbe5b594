"""Room for the part of the catalog that SQLite maps into memory, ``catalog.db-shm``: else a full disk ends the process.

Who writes to a mapped page for which the disk has no block gets SIGBUS. SQLite writes one byte of each 4 KiB of that
file beforehand, which is enough where blocks are as large; ext4 on a small disk has blocks of 1 KiB. There, nothing is
begun without some free space, and the blocks are allocated before a transaction writes.

That is done by SQLite's own descriptor: another one, when it is closed, would take the process's locks with it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SAFE_BLOCK_BYTES = 4096
_FIRST_BYTES = 32 * 1024
"""What is mapped at first: the index of a log of 16 MiB."""
_INDEX_BYTES = 4 * _FIRST_BYTES
_LEAST_FREE_BYTES = 2 * _INDEX_BYTES


def lacks_room(path: Path) -> bool:
    """Whether the catalog at `path` cannot be opened without danger: blocks are small, and hardly any is free.

    Raises:
        OSError: The system refused.
    """
    status = os.statvfs(path)
    blocks = status.f_bavail
    if os.geteuid() == 0:  # for whom some are kept; ext4 keeps up to a fiftieth, 4096 at most, from everybody
        blocks = max(blocks, status.f_bfree - min(status.f_blocks // 40, 4096))
    if status.f_frsize >= _SAFE_BLOCK_BYTES or blocks * status.f_frsize >= _LEAST_FREE_BYTES:
        return False
    return _allocated_bytes(path) < _FIRST_BYTES


def _allocated_bytes(path: Path) -> int:
    try:
        return path.with_name(f"{path.name}-shm").stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def allocate(path: Path) -> None:
    """Have the filesystem allocate the index of an open catalog, where its blocks are small.

    Raises:
        OSError: There is no room.
    """
    if os.statvfs(path).f_frsize >= _SAFE_BLOCK_BYTES or _allocated_bytes(path) >= _INDEX_BYTES:
        return
    fd = _descriptor_of(path.with_name(f"{path.name}-shm"))
    if fd is not None:
        os.posix_fallocate(fd, 0, _INDEX_BYTES)


def _descriptor_of(path: Path) -> int | None:
    """Return the descriptor that this process has for a file; None if it has none, or there is no such file."""
    try:
        wanted = path.lstat()
    except FileNotFoundError:  # a journal that is not mapped
        return None
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers
        try:
            status = os.fstat(int(name))
        except OSError:  # that of the listing itself
            continue
        if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
            return int(name)
    return None
