"""Fill a small filesystem: to the last byte or inode, or so that a given number is left."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BALLAST = "ballast"
LITTER = "litter"
_TRIES = 50


def prepare(mount: Path) -> None:
    """Make what the others need: on a full filesystem it could not be made any more."""
    (mount / BALLAST).touch()
    (mount / LITTER).mkdir()


def empty(mount: Path) -> None:
    """Take everything away again that the others put there."""
    (mount / BALLAST).write_bytes(b"")
    for name in os.listdir(mount / LITTER):
        os.unlink(mount / LITTER / name)


def free_bytes(path: Path) -> int:
    """Return what any user may still write."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def fill_bytes(mount: Path) -> None:
    """Write until not one more byte can be written; root also takes what is kept for root."""
    fd = os.open(mount / BALLAST, os.O_WRONLY | os.O_APPEND)
    try:
        for size in (2**20, 2**16, 4096, 512, 1):
            _until_full(lambda size=size: os.write(fd, bytes(size)))  # type: ignore[misc]
        os.fsync(fd)
    finally:
        os.close(fd)


def fill_inodes(mount: Path) -> None:
    """Make empty files until no more can be made."""
    first = len(os.listdir(mount / LITTER))
    numbers = iter(range(first, 10**9))
    _until_full(lambda: _touch(mount / LITTER / str(next(numbers))))


def leave_bytes(mount: Path, nbytes: int) -> None:
    """Leave so many bytes free, rounded up to a block of the filesystem."""
    block_bytes = os.statvfs(mount).f_frsize
    wanted_bytes = -(-nbytes // block_bytes) * block_bytes
    fd = os.open(mount / BALLAST, os.O_WRONLY)
    try:
        for _ in range(_TRIES):
            surplus = free_bytes(mount) - wanted_bytes
            if surplus == 0:
                return
            size = os.fstat(fd).st_size
            if surplus > 0:
                if not _allocate(fd, size, surplus, block_bytes):
                    return  # the rest is what the filesystem itself would need for it
            else:
                os.ftruncate(fd, size + surplus)
            os.fsync(fd)
    finally:
        os.close(fd)
    raise RuntimeError(f"{free_bytes(mount)} bytes are free, wanted {nbytes}")


def _allocate(fd: int, size: int, nbytes: int, block_bytes: int) -> bool:
    """Make a file larger by so many bytes, or by fewer where so many cannot be had; False: by none."""
    while nbytes > 0:
        try:
            os.posix_fallocate(fd, size, nbytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.ftruncate(fd, size)
            nbytes = nbytes // 2 // block_bytes * block_bytes
        else:
            return True
    return False


def leave_inodes(mount: Path, count: int) -> None:
    """Leave so many inodes free, on a filesystem that has a fixed number of them."""
    litter = mount / LITTER
    number = len(os.listdir(litter))
    while os.statvfs(mount).f_favail > count:
        _touch(litter / str(number))
        number += 1
    while os.statvfs(mount).f_favail < count:
        number -= 1
        os.unlink(litter / str(number))


def _until_full(work: Callable[[], object]) -> None:
    while True:
        try:
            work()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


def _touch(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
