"""What the kernel says of the process of a rank: it has ended, or stands still."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_STANDS_STILL = {
    b"Z": "has ended",  # and only its parent has not asked for that yet
    b"X": "has ended",
    b"T": "is stopped (SIGSTOP, or Ctrl-Z)",
    b"t": "is stopped by a debugger",
}


def what_became_of(document: Mapping[str, Any], host: str) -> str:
    """Return what is wrong with the process that a document names; empty: nothing is seen, as on another host."""
    pid = document.get("pid")
    if document.get("host") != host or not isinstance(pid, int) or pid < 1:
        return ""
    try:
        os.kill(pid, 0)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return "has ended"
    return _STANDS_STILL.get(_state(pid), "")


def _state(pid: int) -> bytes:
    """Return the letter of its state, as in proc(5); empty: /proc does not show it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # it has just gone
        return b""
    return stat.rpartition(b")")[2].split()[0]
