"""What each rank of a process group said last, in the store of the group, should the others lose it.

That store is the one by which the processes of the group found each other; what it holds outlives a rank.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckstore.ranks.who import Document

_ASKED_S = 5.0
"""How long it is asked: the process that serves it may be the one that was lost."""


class Marks:
    """The marks of the ranks in the store of their group; nothing where torch does not give that store."""

    def __init__(self, group: Any) -> None:
        get_store = getattr(group, "get_group_store", None)  # since torch 2.8
        self._store = None
        with suppress(RuntimeError):  # a backend without one
            self._store = None if get_store is None else get_store()

    def leave(self, rank: int, document: Document) -> None:
        """Say how far this rank is, in the place of what it said before: the store is never emptied."""
        if self._store is not None:
            with suppress(RuntimeError):  # the collective that follows says what is wrong
                self._store.set(_key(rank), json.dumps(document))

    def of_all(self, world_size: int) -> dict[int, Document]:
        """Return the marks of all ranks, an empty one for a rank without; nothing if they cannot be had in time."""
        found: dict[int, Document] = {}
        if self._store is not None:
            # In a thread, since a store whose server stands still does not answer, for as long as that.
            reading = threading.Thread(target=self._read, args=(world_size, found), daemon=True)
            reading.start()
            reading.join(_ASKED_S)
        return dict(found) if len(found) == world_size else {}

    def _read(self, world_size: int, found: dict[int, Document]) -> None:
        store: Any = self._store
        with suppress(RuntimeError, ValueError):  # it is gone with the process that served it
            for rank in range(world_size):
                # Asked first: to get a key that is not there waits for it, until the deadline of the store.
                found[rank] = json.loads(store.get(_key(rank))) if store.check([_key(rank)]) else {}


def _key(rank: int) -> str:
    return f"ckstore/{rank}"
