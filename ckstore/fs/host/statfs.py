"""Determine the type of a filesystem with `statfs`, for use without the table of mounts.

`os.statvfs` does not return the type.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

BTRFS = 0x9123683E
"""The number of the type btrfs. This number and those below are from ``linux/magic.h`` or from the sources of the
filesystems."""
_OF_THIS_MACHINE = frozenset(
    {BTRFS, 0xEF53, 0x58465342, 0x01021994, 0x858458F6, 0x794C7630}  # ext2 to ext4, XFS, tmpfs, ramfs, overlay
    | {0xF2F52010, 0x2FC12FC1, 0xCA451A4E, 0x4D44, 0x2011BAB0, 0x52654973, 0x3153464A}  # F2FS, ZFS, bcachefs, FAT …
)
_SHARED = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb3",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x5346414F: "afs",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x65735546: "fuse",
}

_SIZE = 256
"""The size of the buffer, in bytes. The kernel's structure has at most 120 bytes and begins with the number, a long."""

_libc = ctypes.CDLL(None, use_errno=True)


def magic_number(path: Path) -> int:
    """Return the number of the type of the filesystem of `path`."""
    buffer = ctypes.create_string_buffer(_SIZE)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def kind_by_number(path: Path) -> str:
    """Return the type of the filesystem of `path`, for use if the table of mounts is not available.

    The result is empty for a local filesystem, because only the table contains its options and layers. For an unknown
    type, the result is the number, as ``0x1234``.
    """
    number = magic_number(path)
    return "" if number in _OF_THIS_MACHINE else _SHARED.get(number, f"{number:#x}")
