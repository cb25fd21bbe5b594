"""Read the bytes on the disk instead of those in the page cache.

After a failed write, the page cache returns the new bytes while the disk has the old ones. A damaged sector shows only
when it is read from the disk. So files are read with O_DIRECT if the filesystem supports it. Otherwise, their cached
pages are dropped before and after the read. The kernel does not drop mapped or dirty pages, and drops none on tmpfs.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckstore.errors import SaveFailed
from ckstore.fs import files
from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer
from ckstore.fs.dirfd_stat import AnyPath

BUFFER_BYTES = 4 * 2**20
"""Number of bytes in one read, unless a caller needs another size."""


def drop_cached(fd: int) -> None:
    """Drop the cached pages of an open file, as far as the kernel allows it."""
    with suppress(OSError):  # a filesystem that cannot: then bytes are read as they are cached
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


class UncachedFile:
    """An open file whose bytes are read from the disk, as far as that is possible."""

    def __init__(self, fd: int, *, direct: bool) -> None:
        self.fd = fd
        self.direct = direct  # whether reads pass the page cache by
        if not direct:
            drop_cached(fd)

    def read(self, start: int, stop: int, buffer: memoryview) -> memoryview:
        """Read bytes from `start`, up to `stop` and up to one buffer less the alignment; empty at the end."""
        # `start`: any offset. `buffer`: of `aligned_buffer`; the bytes are a part of it.
        if self.direct:
            # The kernel refuses a direct read whose offset or length is not a whole block: read the blocks around the
            # range.
            lead = start % GRAIN_BYTES
            wanted = -(-(lead + stop - start) // GRAIN_BYTES) * GRAIN_BYTES
            try:
                count = os.preadv(self.fd, [buffer[: min(wanted, len(buffer))]], start - lead)
            except OSError as error:
                if error.errno not in files.CANNOT_DIRECT:
                    raise
                # This filesystem refuses at the first read, not when the file is opened: read through the cache.
                fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) & ~os.O_DIRECT)
                self.direct = False
                drop_cached(self.fd)
            else:
                # A read at the end of the file is shorter than asked, and may end before the range begins.
                return buffer[lead : max(lead, min(count, lead + stop - start))]
        count = os.preadv(self.fd, [buffer[: stop - start]], start)
        return buffer[:count]


@contextmanager
def opened_uncached(path: AnyPath) -> Iterator[UncachedFile]:
    """Open a file to read it from the disk, for a `with` block. A symlink is not followed."""
    fd, direct = _open(path)
    try:
        file = UncachedFile(fd, direct=direct)
        yield file
        if not file.direct:
            # Bytes read for a check must not push what the trainer needs out of the page cache.
            drop_cached(file.fd)
    except BaseException:
        with suppress(OSError):  # it was only read; the error that brought us here says more
            os.close(fd)
        raise
    os.close(fd)


def _open(path: AnyPath) -> tuple[int, bool]:
    try:
        return files.open_to_read(path, flags=os.O_DIRECT), True
    except OSError as error:
        if error.errno not in files.CANNOT_DIRECT:
            raise
    return files.open_to_read(path), False


def read_range(path: AnyPath, start: int, stop: int) -> bytearray:
    """Return bytes of a regular file from the disk. There are fewer bytes if the file ends before `stop`."""
    data = bytearray()
    buffer = aligned_buffer(BUFFER_BYTES)
    with opened_uncached(path) as file:
        # A read gives at most one buffer, and less where the file ends: ask until it gives nothing.
        while start + len(data) < stop and (part := file.read(start + len(data), stop, buffer)):
            data += part
    return data


def read_past_cache(fd: int, into: memoryview) -> int:
    """Fill aligned memory with whole blocks from the start of an open file. Return the number of bytes read."""
    # The caller reads the rest through the cache, and meets there what failed here.
    done, whole = 0, len(into) - len(into) % GRAIN_BYTES
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        # After a short read that ends within a block a further direct read would be refused.
        while done < whole and done % GRAIN_BYTES == 0 and (count := os.preadv(fd, [into[done:whole]], done)):
            done += count
    except OSError:
        return done
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return done


def check_on_disk(path: AnyPath, data: memoryview) -> None:
    """Compare a durable file with the bytes that were written to it. fsync does not guarantee that they are equal."""
    # Raises SaveFailed: the disk has other bytes, or cannot read them; the file must not be used.
    try:
        with opened_uncached(path) as file:
            wrong = _first_difference(file, data)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise _refused(
            f"{path} was written and made durable, but the disk cannot read it back: {error.strerror}"
        ) from error
    if wrong is not None:
        raise _refused(f"{path} was written and made durable, but from byte {wrong} on the disk returns other bytes")


def _refused(found: str) -> SaveFailed:
    hint = "do not trust this disk, its controller or memory; dmesg and the SMART values may say more"
    return SaveFailed(f"{found}; nothing was published", hint=hint)


def _first_difference(file: UncachedFile, data: memoryview) -> int | None:
    """Return the offset of the first read (up to a few MiB) that differs from `data`, or None if all are equal."""
    at = 0
    buffer = aligned_buffer(BUFFER_BYTES)
    # One byte further than was written: a file that is too long is wrong as well.
    while part := file.read(at, len(data) + 1, buffer):
        # A bytearray compares with any buffer as memcmp does; two memoryviews go element by element.
        if bytearray(part) != data[at : at + len(part)]:
            return at
        at += len(part)
    return None if at == len(data) else at
