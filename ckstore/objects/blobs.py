"""Judge and hash blobs on disk. Source: docs/format/v1.md, "Blobs"."""

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
    """Whether this is a regular file of that size, as a complete checkpoint needs. `status` may be None."""
    # The one judge of whether the bytes of a blob are there, as a look at its file says; nothing is read.
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_size == nbytes


def why_absent(digest: str, nbytes: int, status: os.stat_result | None) -> str:
    """Return the problem of the file of a blob in one sentence, empty if `has_size`."""
    if status is None:
        return f"blob {digest} is missing"
    return "" if has_size(status, nbytes) else f"blob {digest} has {status.st_size} bytes, wanted {nbytes}"


def looks_untouched(status: os.stat_result, nbytes: int) -> bool:
    """Whether a blob has its size and a stamp, so that no program has written to it by ordinary means."""
    return has_size(status, nbytes) and blob_time.is_stamp(status.st_mtime_ns)


def is_sound(path: StorePath, digest: str, nbytes: int, *, is_used: bool = False) -> bool:
    """Whether a blob is reliable: unchanged by its size and time, or else `verified`.

    If a save uses it (`is_used`), times that are a day old are renewed, because a filesystem that purges by age deletes
    files that were not used for a week or longer.
    """
    # Size and time first: a hit must not cost a read (docs/adr/0010 says how rot is found nevertheless).
    status = dirfd_stat.status(path)
    if not looks_untouched(status, nbytes):
        return has_size(status, nbytes) and is_right(path, digest, nbytes)
    if is_used and blob_time.is_due(status.st_mtime_ns):
        with contextlib.suppress(PermissionError), at(path) as (parent, name):  # another user's, who alone may do it
            blob_time.stamp(name, dir_fd=parent)
    return True


def is_right(path: AnyPath, digest: str, nbytes: int) -> bool:
    """Whether the blob `path` is reliable after reading all of it with `verified`."""
    try:
        return verified(path, digest, nbytes) is not None
    except FileNotFoundError:
        raise
    except OSError:  # it cannot be read, or marked as checked (another user's file): it is not relied on
        return False


def suspect(fd: int) -> None:
    """Mark an open blob that a program touched as being checked. The caller fsyncs it before it reads it."""
    # While it has this time a write meanwhile shows, and after a kill it is as suspect as before; `clear` follows.
    blob_time.mark_suspect(fd)


def refuse(fd: int, before: os.stat_result) -> None:
    """Mark an open blob with wrong bytes as unreliable. A file that was not a blob gets its old time again."""
    # It may be a file of the user that another user linked to the name of a blob.
    if blob_time.is_stamp(before.st_mtime_ns):
        blob_time.mark_suspect(fd)
    else:
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))


def clear(fd: int) -> bool:
    """Stamp a blob whose bytes were right since `suspect`. Return False if a program has written to it since."""
    mtime_ns = os.fstat(fd).st_mtime_ns
    if not blob_time.is_suspect(mtime_ns) and not blob_time.is_stamp(mtime_ns):  # the latter: another reader was faster
        return False
    blob_time.stamp(fd)
    return True


def verified(path: AnyPath, digest: str, nbytes: int) -> os.stat_result | None:
    """Read a whole blob and return its status if its bytes match its digest, or None if they do not."""
    # A right one is durable then, read-only, and stamped; a wrong one loses its stamp, so that no save
    # relies on it. Its pages in the cache are dropped first: a copy may be right in memory only.
    with files.opened_to_read(path) as fd:
        before = os.fstat(fd)
        # Nothing is read or marked: it may be a file of the user that has this name by mistake.
        if not has_size(before, nbytes):
            return None
        untouched = looks_untouched(before, nbytes)
        if not untouched:
            # Before the fsync, so that after a kill in between it is as suspect as before.
            suspect(fd)
        os.fsync(fd)
        # After the fsync, since dirty pages are not dropped.
        direct.drop_cached(fd)
        if _digest_or_unreadable(fd, digest) != digest:
            refuse(fd, before)
            return None
        if untouched and not blob_time.is_stamp(os.fstat(fd).st_mtime_ns):  # a program wrote into it meanwhile
            return None
        if stat.S_IMODE(before.st_mode) != files.BLOB_MODE:
            # A copy made with cp can be writable, and a program could then write into every checkpoint by this inode.
            os.fchmod(fd, files.BLOB_MODE)
        # Last: the stamp says that everything before it was done.
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
            # A bytearray compares with any buffer as memcmp does; two memoryviews go element by element.
            if buffer[:count] != data[at : at + count]:
                return False
            at += count
    return at == len(data)


def distrust(path: StorePath) -> None:
    """Change the time of a damaged blob, so that the next save that would use it reads it first."""
    # The next process that finds its bytes right stamps it again.
    with contextlib.suppress(FileNotFoundError, PermissionError), at(path) as (parent, name):  # gone, or another user's
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


# The save asks between two steps whether it has read long enough (docs/adr/0010).
STEP_BYTES = 2**20


def reading_buffer() -> memoryview:
    """Return memory for `agrees_to` that no other caller uses meanwhile."""
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
    """Compare bytes of a file on the disk from `start` with `data`. Return the end of the compared range, or None."""
    # None: they differ. They are compared by digests of both, which other threads can run beside; to compare bytes they
    # cannot. `go_on` is asked before each step of up to `STEP_BYTES`.
    at = 0
    with direct.opened_uncached(path) as file:
        while at < len(data) and go_on():
            # Past the page cache, which has what was written and not what the disk kept.
            part = file.read(start + at, start + min(len(data), at + STEP_BYTES), buffer)
            if not part or algorithm.digest(part) != algorithm.digest(data[at : at + len(part)]):
                return None
            at += len(part)
    return start + at
