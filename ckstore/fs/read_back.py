"""Read a file from the disk, past the page cache, and compare: does the disk have what was written to it?

`fsync` says that the device took the bytes, not that it kept the right ones.
"""

from __future__ import annotations

import errno

from ckstore.errors import SaveFailed
from ckstore.fs import buffers, direct
from ckstore.fs.inside import Where


def check_on_disk(path: Where, data: memoryview) -> None:
    """Compare the file, which was made durable, with what was written to it.

    Raises:
        SaveFailed: The disk has other bytes, or cannot read them; the file must not be used.
    """
    try:
        with direct.opened_uncached(path) as file:
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


def _first_difference(file: direct.UncachedFile, data: memoryview) -> int | None:
    """Return where a read, of up to a few MiB, first gave other bytes than `data`; None: the file is `data`."""
    at = 0
    buffer = buffers.aligned_buffer(direct.BUFFER_BYTES)
    # One byte further than was written: a file that is too long is wrong as well.
    while part := file.read(at, len(data) + 1, buffer):
        # A bytearray compares with any buffer as memcmp does; two memoryviews go element by element.
        if bytearray(part) != data[at : at + len(part)]:
            return at
        at += len(part)
    return None if at == len(data) else at
