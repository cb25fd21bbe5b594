"""Share blocks between files (``FICLONERANGE``) on XFS and btrfs. Later writes to one file do not affect the other."""

from __future__ import annotations

import errno
import fcntl
import struct

# The number is from linux/fs.h. The argument of the call is a struct file_clone_range.
_FICLONERANGE = 0x4020940D
# The files are on different filesystems, or on one that cannot share blocks; the range is not aligned to
# blocks; or the target is immutable. The caller then copies the data.
_CANNOT = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)
BLOCK_BYTES = 4096
"""The usual block size of a filesystem. Offsets must be multiples of it. Lengths must also be multiples, unless the
range ends at the end of the source."""


def try_share(source: int, source_offset: int, nbytes: int, target: int, target_offset: int) -> bool:
    """Share the blocks of a range of the open file `source` with a range of `target`. Return False if impossible."""
    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, source_offset, nbytes, target_offset))
    except OSError as error:
        if error.errno in _CANNOT:
            return False
        raise
    return True
