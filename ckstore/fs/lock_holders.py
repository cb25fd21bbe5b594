"""Name the processes that hold a `flock` on a directory, from ``/proc/locks``. This module is only for messages."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ckstore.model.words import printable

# An example of a line is ``1: FLOCK  ADVISORY  READ 4242 fd:01:131074 0 EOF``. The device is hexadecimal, and the inode
# is decimal. A line with ``->``, for a process that waits for the lock, does not match. Source: proc(5).
_LINE = re.compile(r"^\d+: FLOCK +\w+ +(READ|WRITE) +(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
_SHOWN = 3


class LockHolder(NamedTuple):
    """A process that has a lock."""

    pid: int  # 0 if the process is not visible, for example in another container
    uid: int | None  # the user of the process; None if it has ended or is not visible
    name: str  # the name of the program; "?" if the process has ended
    is_shared: bool  # readers and saves hold a shared lock, and gc holds an exclusive one

    def __str__(self) -> str:
        if self.pid <= 0:
            return "a process that is not visible to this one"
        of_user = "" if self.uid is None else f" of uid {self.uid}"
        return f"PID {self.pid} ({self.name}){of_user}"


def lock_holders(status: os.stat_result) -> list[LockHolder]:
    """Return the processes that have a `flock` on an inode. The list is empty if ``/proc/locks`` cannot be read."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    wanted = os.major(status.st_dev), os.minor(status.st_dev), status.st_ino
    found = []
    for kind, pid, major, minor, inode in _LINE.findall(text):
        if (int(major, 16), int(minor, 16), int(inode)) == wanted:
            found.append(LockHolder(int(pid), _uid_of(int(pid)), _name_of(int(pid)), kind == "READ"))
    return found


def named_holders(status: os.stat_result) -> str:
    """Return a text such as ``: PID 12 (python) of uid 1001`` about other processes with a `flock` on an inode.

    The text names the first few processes. It is empty if no other process has a lock.
    """
    found = [str(one) for one in lock_holders(status) if one.pid != os.getpid()]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f": {', '.join(found[:_SHOWN])}{more}" if found else ""


def _name_of(pid: int) -> str:
    # Another user may have chosen the name, so it is made printable. The command line can be long.
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return printable(file.read().strip())
    except OSError:
        return "?"


def _uid_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
