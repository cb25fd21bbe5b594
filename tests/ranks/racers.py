"""One of several processes that save the same steps at the same moment; run as a program."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import defaultdict, deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import ckstore
from ckstore import Ranks, Store
from ckstore.objects import publish
from ckstore.ranks import work
from ckstore.ranks.file_rendezvous import FileRendezvous
from ckstore.ranks.merged_checkpoint import MergedCheckpoint
from ckstore.ranks.work import GRACE_LEAST_S, RankWork


def state_of(rank: int, step: int) -> dict[str, object]:
    """Return the state of a rank."""
    loader = {
        "recent": deque([np.full(3, rank), np.full(2, step)], maxlen=4),
        "by_shard": defaultdict(list, {(rank, None): [np.full(4, rank + step)]}),
        "order": list(range(2000)),
    }
    whole = np.full((50, rank + 1), step * 100 + rank)
    return {"loader": loader, "w": whole, "same": np.arange(200_000), "rank": rank}


def stop_here() -> None:
    """Stand still until the test sends SIGCONT."""
    # To this thread: one to the process may be taken by another thread first, and this one goes on until that runs.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stop_at(moment: str) -> ExitStack:
    """Let this process be stopped once, at a moment of its next save, until the stack is closed."""
    patched = ExitStack()
    if not moment:
        return patched
    place, name, before = {
        "staged": (FileRendezvous, "say_part", False),
        "joining": (MergedCheckpoint, "_link_parts", True),
        "publishing": (RankWork, "publishing", False),
        "renamed": (publish, "sync_parents", True),
    }[moment]
    real = getattr(place, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if before:
            stop_here()
        result = real(*args, **kwargs)
        if not before:
            stop_here()
        return result

    patched.enter_context(mock.patch.object(place, name, call))
    return patched


def main() -> None:
    """Do what each line on the standard input says, and answer with a line."""
    store: Store | None = None
    for line in sys.stdin:
        given = json.loads(line)
        if store is None or str(store.path) != given["store"]:
            store = Store.open(given["store"])
        answer: dict[str, object]
        try:
            rank, step = given["rank"], given["step"]
            ranks = Ranks(rank, given["world_size"], given["attempt"], given["timeout"])
            options = {"ranks": ranks, **given.get("options", {})}
            work.GRACE_LEAST_S = given.get("grace_s", GRACE_LEAST_S)
            with stop_at(given.get("stop_at", "")):
                if given.get("files"):
                    info = store.commit(Path(given["files"]), step=step, run=given.get("run", "main"), **options)
                else:
                    state = state_of(rank, step)
                    if given.get("bad"):
                        state["bad"] = object()
                    info = store.save(state, step=step, run=given.get("run", "main"), **options)
            answer = {"id": info.id} | ({"warnings": list(info.warnings)} if given.get("warnings") else {})
        except ckstore.CkstoreError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
