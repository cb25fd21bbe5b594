"""A rank: what it says of itself to the others, and what the kernel says of its process."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]
"""What a rank says, wherever the ranks meet; it names the process: ``rank``, ``host`` and ``pid``."""

_STANDS_STILL = {
    b"Z": "has ended",  # and only its parent has not asked for that yet
    b"X": "has ended",
    b"T": "is stopped (SIGSTOP, or Ctrl-Z)",
    b"t": "is stopped by a debugger",
}


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """A rank, and what it takes part in."""

    # What is saved.
    run: str
    step: int
    # Its number, and how many there are.
    rank: int
    world_size: int
    attempt: str  # names the try; the same on all ranks
    # Where it runs.
    host: str
    pid: int

    @classmethod
    def here(cls, run: str, step: int, rank: int, *, world_size: int = 0, attempt: str = "") -> RankIdentity:
        """Return this process as a rank."""
        return cls(run, step, rank, world_size, attempt, socket.gethostname(), os.getpid())

    @property
    def name(self) -> str:
        """What is saved."""
        return f"{self.run}@{self.step}"

    def document(self, **more: object) -> dict[str, Any]:
        """Return what this rank says to the others."""
        return {"rank": self.rank, "host": self.host, "pid": self.pid, **more}

    def __str__(self) -> str:
        return named(self.rank, self.document())


def named(rank: int, document: Document) -> str:
    """Return how a message names a rank that has said this; with an empty document, one that never said anything."""
    return f"rank {rank} ({document.get('host')}, process {document.get('pid')})" if document else f"rank {rank}"


def what_became_of(document: Document, host: str) -> str:
    """Return what is wrong with the process that a document names; empty: nothing is seen, as on another host."""
    pid = document.get("pid")
    if document.get("host") != host or not isinstance(pid, int) or pid < 1:
        return ""
    try:
        os.kill(pid, 0)  # no signal is sent: the kernel only says whether there is such a process
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
    # The name of the program is in parentheses, and may itself have some: what follows the last one counts.
    return stat.rpartition(b")")[2].split()[0]
