"""Call `statx` to get the alignment of direct I/O, and to refresh attributes from a file server."""

from __future__ import annotations

import ctypes
import os
import struct

from ckstore.fs.dirfd_stat import AnyPath, at

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_FORCE_SYNC = 0x2000
"""AT_STATX_FORCE_SYNC: return the attributes of the server, not those in the cache of this host."""
# STATX_BASIC_STATS and STATX_DIOALIGN of linux/stat.h, and the size of its structure.
_BASIC = 0x7FF
_DIOALIGN = 0x2000
_SIZE = 256
_ALIGN_AT = 152
"""Offset of stx_dio_mem_align. stx_dio_offset_align follows it. The layout is the kernel's ABI."""

_libc = ctypes.CDLL(None, use_errno=True)


def direct_io_bytes(path: AnyPath) -> int | None:
    """Return the alignment of direct I/O on a regular file, 0 if unsupported, or None if unknown (before Linux 6.1)."""
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
    # A kernel that does not know the field leaves zeros in the buffer, which do not mean an alignment of 0.
    if not mask & _DIOALIGN:
        return None
    alignments: tuple[int, int] = struct.unpack_from("II", buffer, _ALIGN_AT)
    return max(alignments)


def refresh(path: AnyPath) -> None:
    """Ask the server for the current attributes of a file, so that the next `stat` returns them."""
    # A host caches the attributes of files on a network filesystem for some seconds. With an old C library, this
    # function does nothing.
    try:
        call = _libc.statx
    except AttributeError:  # an old C library
        return
    buffer = ctypes.create_string_buffer(_SIZE)
    try:
        with at(path) as (parent, name):
            here = (_AT_FDCWD if parent is None else parent, os.fsencode(name))
            # The result is ignored. The call updates the cache of the kernel, from which the next stat reads.
            call(*here, _AT_SYMLINK_NOFOLLOW | _FORCE_SYNC, ctypes.c_uint(_BASIC), buffer)
    except (FileNotFoundError, NotADirectoryError):  # the next `stat` of the caller fails in the same way
        return
