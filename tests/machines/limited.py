"""Saves and loads in a process whose memory is limited: ``python -m tests.machines.limited STORE``."""

from __future__ import annotations

import gc
import json
import sys

import numpy as np

from ckstore import Store
from ckstore.errors import InsufficientSpace

MIB = 2**20
STATE_MIB = 96
LIMIT_MIB = 224
"""Python, NumPy, the state and a saver fit into it, a second state does not."""
_TIMEOUT_S = 60.0


def said(act: object) -> str:
    """Return what came of an act."""
    try:
        act()  # type: ignore[operator]
    except InsufficientSpace as error:
        return str(error)
    return "done"


def main() -> None:
    """Train, save, load and free; print what came of each."""
    store = Store.open_or_init(sys.argv[1], run="r")
    state = {"w": np.ones(STATE_MIB * MIB, np.uint8)}
    found = {
        "save": said(lambda: store.save(state, step=1)),
        "save_async": said(lambda: store.save_async(state, step=2).result(_TIMEOUT_S)),
        "load": said(lambda: store.load(1)),
        "load mapped": said(lambda: store.load(1, mmap=True)),
        "load into": said(lambda: store.load_into(state, 1)),
    }
    state["w"] += 1  # the training goes on
    found["save again"] = said(lambda: store.save(state, step=2))
    found["gc"] = said(lambda: (store.delete(1), store.gc()))
    found["small save_async"] = said(lambda: store.save_async({"w": state["w"][:MIB]}, step=3).result(_TIMEOUT_S))
    state.clear()
    gc.collect()  # a save leaves its sources to that
    found["load alone"] = said(lambda: store.load(2))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
