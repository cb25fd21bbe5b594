"""Exchange two names in one step: what a neighbour does, and ckstore itself never."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_renameat2 = ctypes.CDLL(None, use_errno=True).renameat2


def exchange(one: Path, other: Path) -> None:
    """Exchange what two paths name (``renameat2`` with ``RENAME_EXCHANGE``)."""
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))
