"""Read a file from the disk, past the page cache, and compare: does the disk have what was written to it?

`fsync` says that the device took the bytes, not that it kept the right ones. The page cache would only show what was
written, so it is passed by with O_DIRECT; where the filesystem has none, the file's pages are dropped first.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING

from ckstore.errors import SaveFailed
from ckstore.fs.files import opened

if TYPE_CHECKING:
    from pathlib import Path

_BUFFER_BYTES = 4 * 2**20


def check_on_disk(path: Path, data: memoryview) -> None:
    """Compare the file, which was made durable, with what was written to it.

    Raises:
        SaveFailed: The disk has other bytes, or cannot read them; the file must not be used.
        OSError: The system refused.
    """
    try:
        try:
            with opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECT) as fd:
                wrong = _first_difference(fd, data)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            with opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd:  # no direct I/O here
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                wrong = _first_difference(fd, data)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise _refused(f"{path} was written and made durable, but the disk cannot read it: {error.strerror}") from error
    if wrong is not None:
        raise _refused(f"{path} was written and made durable, but the disk has other bytes from byte {wrong} on")


def _refused(what: str) -> SaveFailed:
    hint = "the disk, its controller or memory is not to be trusted: dmesg and its SMART values may say more"
    return SaveFailed(f"{what}; nothing was published", hint=hint)


def _first_difference(fd: int, data: memoryview) -> int | None:
    """Return where a read, of up to a few MiB, first gave other bytes than `data`; None: the file is `data`."""
    at = 0
    with mmap.mmap(-1, _BUFFER_BYTES) as memory, memoryview(memory) as buffer:  # aligned, as direct I/O wants it
        while count := os.preadv(fd, [buffer], at):
            # A bytearray compares with any buffer as memcmp does; two memoryviews go element by element.
            if bytearray(buffer[:count]) != data[at : at + count]:
                return at
            at += count
    return None if at == len(data) else at
