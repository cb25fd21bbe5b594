"""What `statx` tells beyond `stat`: the id of the mount, and the alignment of direct I/O."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_MNT_ID = 0x1000
_DIOALIGN = 0x2000
_SIZE = 256
_TAIL_AT = 144
"""Where stx_mnt_id stands; stx_dio_mem_align and stx_dio_offset_align follow. The layout is the kernel's ABI."""

_libc = ctypes.CDLL(None, use_errno=True)


def mount_id(path: Path) -> int | None:
    """Return the id of the mount that `path` is reached through; None if it cannot be had (before Linux 5.8)."""
    tail = _ask(path, _MNT_ID)
    return None if tail is None else tail[0]


def direct_io_bytes(path: Path) -> int | None:
    """Return the alignment of direct I/O on a regular file; 0: there is none; None: not told (before Linux 6.1)."""
    tail = _ask(path, _DIOALIGN)
    return None if tail is None else max(tail[1], tail[2])


def _ask(path: Path, wanted: int) -> tuple[int, int, int] | None:
    try:
        call = _libc.statx
    except AttributeError:  # an old C library
        return None
    buffer = ctypes.create_string_buffer(_SIZE)
    if call(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, ctypes.c_uint(wanted), buffer) != 0:
        return None
    (mask,) = struct.unpack_from("I", buffer)
    if not mask & wanted:
        return None
    mount, memory_bytes, offset_bytes = struct.unpack_from("QII", buffer, _TAIL_AT)
    return mount, memory_bytes, offset_bytes
