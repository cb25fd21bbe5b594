"""Read the bytes on the disk instead of those in the page cache.

After a failed write, the page cache returns the new bytes although the disk still has the old bytes. A damaged sector
is noticed only when the sector is read from the disk. So files are read with O_DIRECT if the filesystem supports it.
Otherwise, their cached pages are dropped before and after the read. The kernel does not drop pages that are mapped,
dirty, or on tmpfs.
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
"""The size of the buffer of a read, in bytes, unless a caller needs another size."""


def drop_cached(fd: int) -> None:
    """Drop the cached pages of an open file, as far as the kernel allows it."""
    with suppress(OSError):  # if the filesystem does not support the call, later reads return cached bytes
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


class UncachedFile:
    """An open file whose bytes are read from the disk, as far as that is possible."""

    def __init__(self, fd: int, *, direct: bool) -> None:
        self.fd = fd
        self.direct = direct  # whether reads bypass the page cache
        if not direct:
            drop_cached(fd)

    def read(self, start: int, stop: int, buffer: memoryview) -> memoryview:
        """Return bytes from `start`, at most up to `stop`, as a part of `buffer`, or no bytes at the end of the file.

        `start` may be any offset. `buffer` must be from `aligned_buffer`. One call may return fewer bytes than fit into
        the buffer.
        """
        if self.direct:
            # The offset and length of a direct read must be multiples of the block size, so it reads whole blocks.
            lead = start % GRAIN_BYTES
            wanted = -(-(lead + stop - start) // GRAIN_BYTES) * GRAIN_BYTES
            try:
                count = os.preadv(self.fd, [buffer[: min(wanted, len(buffer))]], start - lead)
            except OSError as error:
                if error.errno not in files.CANNOT_DIRECT:
                    raise
                # Some filesystems allow O_DIRECT when the file is opened, and refuse the first read.
                fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) & ~os.O_DIRECT)
                self.direct = False
                drop_cached(self.fd)
            else:
                # Near the end of the file, the kernel returns fewer bytes, and the requested range may begin after
                # them.
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
            # Bytes that were read for a check must not displace data of the trainer from the page cache.
            drop_cached(file.fd)
    except BaseException:
        with suppress(OSError):  # the first error is more important
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
    """Return the bytes of a regular file from `start` to `stop`, or to the end of the file, from the disk."""
    data = bytearray()
    buffer = aligned_buffer(BUFFER_BYTES)
    with opened_uncached(path) as file:
        # One read returns at most one buffer, and no bytes at the end of the file.
        while start + len(data) < stop and (part := file.read(start + len(data), stop, buffer)):
            data += part
    return data


def read_past_cache(fd: int, offset: int, into: memoryview) -> int:
    """Fill aligned memory with whole blocks of an open file from `offset`. Return the number of bytes read."""
    # The caller reads the rest through the page cache. If the disk fails again, that read raises the error.
    if offset % GRAIN_BYTES:
        return 0
    done, whole = 0, len(into) - len(into) % GRAIN_BYTES
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        # After a short read that ends within a block, the kernel would refuse a further direct read.
        while done < whole and done % GRAIN_BYTES == 0 and (count := os.preadv(fd, [into[done:whole]], offset + done)):
            done += count
    except OSError:
        return done
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return done


def check_on_disk(path: AnyPath, data: memoryview) -> None:
    """Compare a durable file with the bytes that were written to it. fsync does not guarantee that they are equal.

    Raises:
        SaveFailed: The disk returns other bytes, or cannot read them. The file must not be used.
    """
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
        raise _refused(f"{path} was written and made durable, but the disk returns other bytes from byte {wrong} on")


def _refused(found: str) -> SaveFailed:
    hint = "do not trust this disk, its controller or memory; dmesg and the SMART values may say more"
    return SaveFailed(f"{found}; nothing was published", hint=hint)


def _first_difference(file: UncachedFile, data: memoryview) -> int | None:
    """Return the offset of the first block of a few MiB that differs from `data`, or None if all bytes are equal."""
    at = 0
    buffer = aligned_buffer(BUFFER_BYTES)
    # The read requests one byte more than was written, to detect a file that is too long.
    while part := file.read(at, len(data) + 1, buffer):
        # A bytearray is compared with memcmp. Two memoryviews would be compared element by element.
        if bytearray(part) != data[at : at + len(part)]:
            return at
        at += len(part)
    return None if at == len(data) else at
