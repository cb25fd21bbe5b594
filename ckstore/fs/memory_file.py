"""A file in memory without a name: bytes that are read as those of a file are."""

from __future__ import annotations

import os

from ckstore.fs.files import write_all


def memory_file(data: memoryview) -> int:
    """Return a descriptor of a file that has these bytes, which the caller closes.

    Raises:
        OSError: There is no memory for it.
    """
    fd = os.memfd_create("ckstore", os.MFD_CLOEXEC)
    try:
        write_all(fd, data)
    except BaseException:
        os.close(fd)
        raise
    return fd
