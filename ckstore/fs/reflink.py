"""Share blocks between files (``FICLONERANGE``) on XFS and btrfs. Later writes to one file do not affect the other."""

from __future__ import annotations

import errno
import fcntl
import struct

# From linux/fs.h; its argument is struct file_clone_range.
_FICLONERANGE = 0x4020940D
# Another filesystem, one without shared blocks, a range off its blocks, or an immutable file: the caller copies.
_CANNOT = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)
BLOCK_BYTES = 4096
"""Offsets must be multiples of the filesystem's block size, and so must lengths, except at the end of the source."""


def try_share(source: int, source_offset: int, nbytes: int, target: int, target_offset: int) -> bool:
    """Share the blocks of a range of the open file `source` with a range of `target`. Return False if not possible."""
    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, source_offset, nbytes, target_offset))
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return True
