"""Judge and hash blobs on disk. Source: docs/format/v1.md, "Blobs"."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from ckstore.fs import files
from ckstore.model.digest import algorithm_of

if TYPE_CHECKING:
    from pathlib import Path

_READ_BYTES = 4 * 2**20
_SUSPECT_NS = 0


def has_size(status: os.stat_result, nbytes: int) -> bool:
    """Whether this is a regular file of that size: what a complete checkpoint needs."""
    return stat.S_ISREG(status.st_mode) and status.st_size == nbytes


def looks_untouched(status: os.stat_result, nbytes: int) -> bool:
    """Whether a blob has its size and the fixed time, so that nobody wrote into it by ordinary means."""
    return has_size(status, nbytes) and status.st_mtime_ns == files.BLOB_MTIME_NS


def is_sound(path: Path, digest: str, nbytes: int) -> bool:
    """Whether the blob `path` can be relied on: untouched by its size and time, else by hashing it again.

    A file that somebody touched but whose bytes are right gets the fixed time back. While it is hashed it has a time of
    its own, so that a write meanwhile shows and a kill leaves it suspect; it is made durable before it is trusted.

    Raises:
        FileNotFoundError: There is no such file.
    """
    status = os.stat(path, follow_symlinks=False)
    if looks_untouched(status, nbytes):
        return True
    if not has_size(status, nbytes):
        return False
    try:
        return _is_right(path, digest)
    except FileNotFoundError:
        raise
    except OSError:  # it cannot be read, or marked as checked (another user's file): it is not relied on
        return False


def _is_right(path: Path, digest: str) -> bool:
    os.utime(path, ns=(_SUSPECT_NS, _SUSPECT_NS), follow_symlinks=False)
    if digest_of_file(path, digest) != digest:
        return False
    with files.opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
        os.fsync(fd)
        # Another checker may have finished meanwhile; any other time is that of a write.
        if os.fstat(fd).st_mtime_ns not in (_SUSPECT_NS, files.BLOB_MTIME_NS):
            return False
    os.utime(path, ns=(files.BLOB_MTIME_NS, files.BLOB_MTIME_NS), follow_symlinks=False)
    return True


def verified(path: Path, digest: str, nbytes: int) -> os.stat_result | None:
    """Read a blob whole and return its status if its bytes are what its name says; None if they are not.

    What is right is durable then, read-only, and has the fixed time; what is wrong loses that time, so that no save
    relies on it. What the page cache has of it is dropped first: a copy may be right in memory only.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It could not be made durable, or is another user's; it is not relied on.
    """
    with files.opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as fd:
        before = os.fstat(fd)
        if not has_size(before, nbytes):
            return None
        untouched = looks_untouched(before, nbytes)
        if not untouched:  # it is suspect until it was read, also for whoever comes after a kill
            os.utime(fd, ns=(_SUSPECT_NS, _SUSPECT_NS))
        os.fsync(fd)
        with contextlib.suppress(OSError):  # a filesystem that cannot drop pages: then they are read as they are
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if _digest_or_unreadable(fd, digest) != digest:
            os.utime(fd, ns=(_SUSPECT_NS, _SUSPECT_NS))
            return None
        now_ns = os.fstat(fd).st_mtime_ns
        if now_ns != files.BLOB_MTIME_NS and (untouched or now_ns != _SUSPECT_NS):  # somebody wrote into it meanwhile
            return None
        if stat.S_IMODE(before.st_mode) != files.BLOB_MODE:
            os.fchmod(fd, files.BLOB_MODE)
        if not untouched:
            os.utime(fd, ns=(files.BLOB_MTIME_NS, files.BLOB_MTIME_NS))
        return os.fstat(fd)


def _digest_or_unreadable(fd: int, like: str) -> str:
    try:
        return _digest_of(fd, like)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"unreadable: {error.strerror}"


def has_bytes(path: Path, data: memoryview) -> bool:
    """Whether the content of the file is `data`, byte by byte."""
    buffer = bytearray(_READ_BYTES)
    at = 0
    with files.opened_regular(path) as fd:
        while count := os.preadv(fd, [buffer], at):
            # A bytearray compares with any buffer as memcmp does; two memoryviews go element by element.
            if buffer[:count] != data[at : at + count]:
                return False
            at += count
    return at == len(data)


def distrust(name: str, *, dir_fd: int) -> None:
    """Give a blob that was found damaged another time, so that the next save that would use it reads it again.

    Whoever then finds its bytes right gives it the fixed time back.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):  # gone, or another user's: he sees to it
        os.utime(name, ns=(0, 0), dir_fd=dir_fd, follow_symlinks=False)


def digest_of_file(path: Path, like: str) -> str:
    """Return the digest of a file's content, with the algorithm of the digest `like`."""
    with files.opened_regular(path) as fd:
        return _digest_of(fd, like)


def _digest_of(fd: int, like: str) -> str:
    algorithm = algorithm_of(like)
    running = algorithm.start()
    buffer = memoryview(bytearray(_READ_BYTES))
    while count := os.readv(fd, [buffer]):
        running.update(buffer[:count])
    return algorithm.digest_of_parts(running)
