"""Share blocks between files (``FICLONERANGE``): XFS and btrfs can; both files go on as if they were copies."""

from __future__ import annotations

import errno
import fcntl
import struct

# From linux/fs.h; its argument is struct file_clone_range.
_FICLONERANGE = 0x4020940D
# Another filesystem, one without shared blocks, a range off its blocks, or an immutable file: the caller copies.
_CANNOT = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)
BLOCK_BYTES = 4096
"""Offsets must be multiples of the filesystem's block; lengths too, but where the source ends."""


def try_share(source: int, source_offset: int, nbytes: int, target: int, target_offset: int) -> bool:
    """Let a range of the open file `target` share the blocks of a range of `source`; False if it cannot."""
    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, source_offset, nbytes, target_offset))
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return True
