"""What `statfs` tells beyond `os.statvfs`: which filesystem it is, without reading the table of mounts."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BTRFS = 0x9123683E
"""From ``linux/magic.h``."""

_SIZE = 256
"""The kernel's structure has 120 bytes at most; its first member, a long, is the number."""

_libc = ctypes.CDLL(None, use_errno=True)


def magic_number(path: Path) -> int:
    """Return the number that stands for the kind of filesystem that holds `path`.

    Raises:
        OSError: The system refused.
    """
    buffer = ctypes.create_string_buffer(_SIZE)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF
