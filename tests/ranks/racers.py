"""One of several processes that save the same steps at the same moment; run as a program."""

from __future__ import annotations

import json
import sys
from collections import defaultdict, deque
from pathlib import Path

import numpy as np

import ckstore
from ckstore import Store


def state_of(rank: int, step: int) -> dict[str, object]:
    """Return the state of a rank."""
    loader = {
        "recent": deque([np.full(3, rank), np.full(2, step)], maxlen=4),
        "by_shard": defaultdict(list, {(rank, None): [np.full(4, rank + step)]}),
        "order": list(range(2000)),
    }
    whole = np.full((50, rank + 1), step * 100 + rank)
    return {"loader": loader, "w": whole, "same": np.arange(200_000), "rank": rank}


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
            options = {"rank": rank, "world_size": given["world_size"], "timeout": given["timeout"]}
            options["attempt"] = given["attempt"]
            if given.get("files"):
                info = store.commit(Path(given["files"]), step=step, run=given.get("run", "main"), **options)
            else:
                state = state_of(rank, step)
                if given.get("bad"):
                    state["bad"] = object()
                info = store.save(state, step=step, run=given.get("run", "main"), **options)
            answer = {"id": info.id}
        except ckstore.CkstoreError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
