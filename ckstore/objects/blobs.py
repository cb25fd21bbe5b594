"""Check and hash blobs on the disk. Source: docs/format/v1.md, "Blobs"."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from ckstore.fs import blob_time, direct, dirfd_stat, files
from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer
from ckstore.fs.dirfd_stat import AnyPath, StorePath, at
from ckstore.model.digest import Algorithm, algorithm_of

_READ_BYTES = 4 * 2**20


def has_size(status: os.stat_result | None, nbytes: int) -> bool:
    """Whether this is the status of a regular file of that size. `status` may be None.

    All checks of complete checkpoints use this function. It does not check the bytes.
    """
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_size == nbytes


def why_absent(digest: str, nbytes: int, status: os.stat_result | None) -> str:
    """Return the problem with the file of a blob in one sentence, or "" if the file has the right size."""
    if status is None:
        return f"blob {digest} is missing"
    return "" if has_size(status, nbytes) else f"blob {digest} has {status.st_size} bytes, wanted {nbytes}"


def looks_untouched(status: os.stat_result, nbytes: int) -> bool:
    """Whether a blob has its size and a stamp. Only ckstore sets a stamp, and an ordinary write changes it."""
    return has_size(status, nbytes) and blob_time.is_stamp(status.st_mtime_ns)


def is_sound(path: StorePath, digest: str, nbytes: int, *, is_used: bool = False) -> bool:
    """Whether a blob is reliable: it has its size and a stamp, or `verified` accepts its bytes.

    If a save uses the blob (`is_used`), a stamp that is more than a day old is renewed. Otherwise, a filesystem that
    purges by age would delete the blob after a week or longer.
    """
    # Check the size and time first, so that a reused blob need not be read (docs/adr/0010 describes how damage on the
    # disk is detected).
    status = dirfd_stat.status(path)
    if not looks_untouched(status, nbytes):
        return has_size(status, nbytes) and is_right(path, digest, nbytes)
    if is_used and blob_time.is_due(status.st_mtime_ns):
        with contextlib.suppress(PermissionError), at(path) as (parent, name):  # only the owner can set the time
            blob_time.stamp(name, dir_fd=parent)
    return True


def is_right(path: AnyPath, digest: str, nbytes: int) -> bool:
    """Read the whole blob `path` with `verified`, and return whether it is reliable."""
    try:
        return verified(path, digest, nbytes) is not None
    except FileNotFoundError:
        raise
    except OSError:  # the file cannot be read, or cannot be stamped because it belongs to another user
        return False


def suspect(fd: int) -> None:
    """Mark an open blob as suspect before it is checked. The caller must fsync it before reading it."""
    # The mark is a modification time, so a write during the check changes it. If the process is killed during the
    # check, the blob remains suspect. After a successful check, the caller calls `clear`.
    blob_time.mark_suspect(fd)


def refuse(fd: int, before: os.stat_result) -> None:
    """Mark an open blob with wrong bytes as unreliable. If the blob had no stamp before, restore its old time."""
    # A file without a stamp may be any file of this user, to which another user has linked the name of a blob.
    if blob_time.is_stamp(before.st_mtime_ns):
        blob_time.mark_suspect(fd)
    else:
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))


def clear(fd: int) -> bool:
    """Stamp a blob whose bytes are correct. Return False if a program has written to it since `suspect` was called."""
    mtime_ns = os.fstat(fd).st_mtime_ns
    # If the blob already has a stamp, another reader checked the blob at the same time.
    if not blob_time.is_suspect(mtime_ns) and not blob_time.is_stamp(mtime_ns):
        return False
    blob_time.stamp(fd)
    return True


def verified(path: AnyPath, digest: str, nbytes: int) -> os.stat_result | None:
    """Read a whole blob from the disk. Return its status if its bytes match its digest, otherwise None.

    An intact blob is then durable, read-only and stamped. The stamp of a damaged blob is removed, so that no save
    relies on the blob. A file of another size is not read, and the function returns None.
    """
    with files.opened_to_read(path) as fd:
        before = os.fstat(fd)
        # A file of another size is neither read nor marked, because a user may have given it this name by mistake.
        if not has_size(before, nbytes):
            return None
        untouched = looks_untouched(before, nbytes)
        if not untouched:
            # Do this before the fsync, so that the blob remains suspect if this process is killed after the fsync.
            suspect(fd)
        os.fsync(fd)
        # Drop the pages of the blob from the cache, because the bytes may be correct only in memory. Dirty pages cannot
        # be dropped, so do this after the fsync.
        direct.drop_cached(fd)
        if _digest_or_unreadable(fd, digest) != digest:
            refuse(fd, before)
            return None
        if untouched and not blob_time.is_stamp(os.fstat(fd).st_mtime_ns):  # a program wrote to the blob meanwhile
            return None
        if stat.S_IMODE(before.st_mode) != files.BLOB_MODE:
            # A copy made with cp may be writable, and a program could then change all checkpoints with this inode.
            os.fchmod(fd, files.BLOB_MODE)
        # Stamp the blob last, because the stamp means that all other steps are done.
        if not untouched and not clear(fd):
            return None
        return os.fstat(fd)


def _digest_or_unreadable(fd: int, like: str) -> str:
    try:
        return _digest_of(fd, like)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"unreadable: {error.strerror}"


def has_bytes(path: AnyPath, data: memoryview) -> bool:
    """Whether the content of the file equals `data`."""
    buffer = bytearray(_READ_BYTES)
    at = 0
    with files.opened_regular(path) as fd:
        while count := os.preadv(fd, [buffer], at):
            # A bytearray is compared with memcmp. Two memoryviews would be compared element by element.
            if buffer[:count] != data[at : at + count]:
                return False
            at += count
    return at == len(data)


def distrust(path: StorePath) -> None:
    """Change the time of a damaged blob, so that the next save reads the blob before using it."""
    # If the bytes are correct after all, the next process that reads the blob stamps it again. If the blob was removed
    # or belongs to another user, nothing can be done.
    with contextlib.suppress(FileNotFoundError, PermissionError), at(path) as (parent, name):
        if blob_time.is_stamp(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mtime_ns):
            blob_time.mark_suspect(name, dir_fd=parent)


def digest_of_file(path: AnyPath, like: str) -> str:
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


# The number of bytes that are compared between two calls of `go_on`, with which a save limits the time for reading
# (docs/adr/0010).
STEP_BYTES = 2**20


def reading_buffer() -> memoryview:
    """Return memory for `agrees_to`. Two callers must not use the same memory at the same time."""
    return aligned_buffer(STEP_BYTES + GRAIN_BYTES)


def agrees_to(
    path: StorePath,
    data: memoryview,
    start: int,
    *,
    algorithm: Algorithm,
    buffer: memoryview,
    go_on: Callable[[], bool],
) -> int | None:
    """Compare the bytes of a file on the disk from `start` with `data`.

    Args:
        path: The file.
        data: The wanted bytes.
        start: The offset in the file.
        algorithm: The hash algorithm.
        buffer: Memory from `reading_buffer`.
        go_on: Called before each step of up to `STEP_BYTES`. If it returns False, the comparison ends.

    Returns:
        The end of the compared range, or None if bytes differ.
    """
    # Digests are compared instead of bytes, because computing a digest releases the GIL for other threads.
    at = 0
    with direct.opened_uncached(path) as file:
        while at < len(data) and go_on():
            # Bypass the page cache, which has the bytes that were written, while the disk may have lost them.
            part = file.read(start + at, start + min(len(data), at + STEP_BYTES), buffer)
            if not part or algorithm.digest(part) != algorithm.digest(data[at : at + len(part)]):
                return None
            at += len(part)
    return start + at
