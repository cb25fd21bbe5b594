"""The identity of a rank: its document for the other ranks, and the state of its process in the kernel."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]
"""A document of a rank for the other ranks. It identifies the process by ``rank``, ``host`` and ``pid``."""

_STANDS_STILL = {
    b"Z": "has ended",  # a zombie, whose parent has not waited for it yet
    b"X": "has ended",
    b"T": "is stopped (SIGSTOP, or Ctrl-Z)",
    b"t": "is stopped by a debugger",
}


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """A rank, and the save or load in which it takes part."""

    # The checkpoint.
    run: str
    step: int
    # The number of this rank, and the number of ranks.
    rank: int
    world_size: int
    attempt: str  # the name of the attempt, the same on all ranks
    # The process.
    host: str
    pid: int

    @classmethod
    def here(cls, run: str, step: int, rank: int, *, world_size: int = 0, attempt: str = "") -> RankIdentity:
        """Return the identity of this process as a rank."""
        return cls(run, step, rank, world_size, attempt, socket.gethostname(), os.getpid())

    @property
    def name(self) -> str:
        """The name of the checkpoint that the ranks save."""
        return f"{self.run}@{self.step}"

    def document(self, **more: object) -> dict[str, Any]:
        """Return the document of this rank for the other ranks."""
        return {"rank": self.rank, "host": self.host, "pid": self.pid, **more}

    def __str__(self) -> str:
        return named(self.rank, self.document())


def named(rank: int, document: Document) -> str:
    """Return the name of a rank for messages. An empty document means that the rank never wrote one."""
    return f"rank {rank} ({document.get('host')}, process {document.get('pid')})" if document else f"rank {rank}"


def what_became_of(document: Document, host: str) -> str:
    """Return a text if the process of a document has ended or is stopped; empty if it runs or is on another host."""
    pid = document.get("pid")
    if document.get("host") != host or not isinstance(pid, int) or pid < 1:
        return ""
    try:
        os.kill(pid, 0)  # this sends no signal, and only checks whether the process exists
    except OSError as error:
        if error.errno == errno.ESRCH:
            return "has ended"
    return _STANDS_STILL.get(_state(pid), "")


def _state(pid: int) -> bytes:
    """Return the letter of a process's state, as in proc(5), or an empty value if /proc does not show it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # the process has just ended
        return b""
    # The state follows the last parenthesis. The name of the program is in parentheses, and may contain parentheses.
    return stat.rpartition(b")")[2].split()[0]
