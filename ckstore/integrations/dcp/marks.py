"""The marks that each rank leaves in the store of its process group: how far it is, should the others lose it.

That store is the one by which the processes of the group found each other; what it holds outlives a rank.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_ASKED_S = 5.0
"""How long it is asked: the process that serves it may be the one that was lost."""


@dataclass(frozen=True)
class Mark:
    """What a rank said last: in which of its calls it is, and how far."""

    calls: int = 0
    phase: str = ""
    pid: int = 0
    host: str = ""


class Marks:
    """The marks of the ranks in the store of their group; nothing where torch does not give that store."""

    def __init__(self, group: Any, calls: int) -> None:
        self._rank = group.rank()
        self._calls = calls
        get_store = getattr(group, "get_group_store", None)  # since torch 2.8
        self._store = None
        with suppress(RuntimeError):  # a backend without one
            self._store = None if get_store is None else get_store()

    def leave(self, phase: str) -> None:
        """Say how far this rank is."""
        if self._store is not None:
            with suppress(RuntimeError):  # the collective that follows says what is wrong
                said = f"{self._calls} {phase} {os.getpid()} {socket.gethostname()}"
                self._store.set(_key(self._rank), said)

    def of_all(self, world_size: int) -> dict[int, Mark]:
        """Return the marks of all ranks, an empty one for a rank without; nothing if they cannot be had in time."""
        found: dict[int, Mark] = {}
        if self._store is not None:
            # In a thread, since a store whose server stands still does not answer, for as long as that.
            reading = threading.Thread(target=self._read, args=(world_size, found), daemon=True)
            reading.start()
            reading.join(_ASKED_S)
        return dict(found) if len(found) == world_size else {}

    def _read(self, world_size: int, found: dict[int, Mark]) -> None:
        store: Any = self._store
        with suppress(RuntimeError, ValueError):  # it is gone with the process that served it
            for rank in range(world_size):
                mark = Mark()
                if store.check([_key(rank)]):
                    calls, phase, pid, host = store.get(_key(rank)).decode().split(" ", 3)
                    mark = Mark(int(calls), phase, int(pid), host)
                found[rank] = mark


def _key(rank: int) -> str:
    return f"ckstore/{rank}"
