"""What `statx` tells beyond `stat`: the alignment of direct I/O."""

from __future__ import annotations

import ctypes
import os
import struct

from ckstore.fs.inside import Where, at

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_DIOALIGN = 0x2000
_SIZE = 256
_ALIGN_AT = 152
"""Where stx_dio_mem_align stands; stx_dio_offset_align follows. The layout is the kernel's ABI."""

_libc = ctypes.CDLL(None, use_errno=True)


def direct_io_bytes(path: Where) -> int | None:
    """Return the alignment of direct I/O on a regular file; 0: there is none; None: not told (before Linux 6.1)."""
    try:
        call = _libc.statx
    except AttributeError:  # an old C library
        return None
    buffer = ctypes.create_string_buffer(_SIZE)
    with at(path) as (parent, name):
        here = (_AT_FDCWD if parent is None else parent, os.fsencode(name))
        if call(*here, _AT_SYMLINK_NOFOLLOW, ctypes.c_uint(_DIOALIGN), buffer) != 0:
            return None
    (mask,) = struct.unpack_from("I", buffer)
    if not mask & _DIOALIGN:
        return None
    alignments: tuple[int, int] = struct.unpack_from("II", buffer, _ALIGN_AT)
    return max(alignments)
