"""What is tried under a quota; with quota.so loaded: ``python -m tests.machines.quota_acts ROOT LIMIT``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ckstore import RetentionPolicy, Store
from ckstore.errors import InsufficientSpace

MIB = 2**20
_TIMEOUT_S = 60.0

SetLimit = Callable[[int | None], None]
"""Allow so many more bytes than are used now; None: any."""


def state(seed: int) -> dict[str, Any]:
    """4 MiB that no other seed gives."""
    return {"w": np.random.default_rng(seed).integers(0, 256, 4 * MIB, dtype=np.uint8)}


def used_bytes(root: Path) -> int:
    """Return what all files below a directory take, each once."""
    found = [path.lstat() for path in root.rglob("*") if not path.is_dir()]
    return sum({status.st_ino: status.st_blocks * 512 for status in found}.values())


def refused(act: Callable[[], object]) -> bool:
    """Whether an act says that there is no space; another error is raised."""
    try:
        act()
    except InsufficientSpace:
        return True
    return False


def in_flight(root: Path) -> list[str]:
    """Return what failed saves left behind."""
    return [*os.listdir(root / "staging"), *os.listdir(root / "trash")]


def live_with(root: Path, limit: SetLimit) -> None:
    """Meet a quota in the middle of a save and at every other act, free what can be freed, and go on."""
    store = Store.open_or_init(root, run="r")
    for step in (1, 2, 3):
        store.save(state(step), step=step)

    limit(2 * MIB)
    assert refused(lambda: store.save(state(4), step=4))
    assert in_flight(root) == []
    limit(0)
    assert refused(lambda: store.save(state(4), step=4))
    assert refused(lambda: store.save_async(state(4), step=4).result(_TIMEOUT_S))
    for act in (
        lambda: store.save({"tiny": 1}, step=9),
        lambda: store.tag("best", 3),
        lambda: store.annotate(3, metrics={"acc": 1.0}),
        lambda: store.pin(3, "x"),
    ):
        refused(act)  # or there is just enough in a block that is there already
    assert in_flight(root) == []
    latest = store.latest()
    assert latest is not None
    assert (store.load(3)["w"] == state(3)["w"]).all()

    before = used_bytes(root)
    store.delete(1)  # frees at once
    store.gc()
    assert used_bytes(root) < before - 3 * MIB
    limit(0)
    before = used_bytes(root)
    store.prune(RetentionPolicy(keep_last=1))
    with Store.open(root, run="r") as again:  # as the command line does
        again.gc()
    assert used_bytes(root) < before - 3 * MIB
    assert in_flight(root) == []

    limit(6 * MIB)  # space again
    assert store.save(state(4), step=4).step == 4
    store.gc()
    assert store.verify().ok
    assert sum(path.stat().st_size for path in (root / "reserve").iterdir()) == MIB
    limit(None)
    assert store.save_async(state(5), step=5).result(_TIMEOUT_S).step == 5
    store.close()


def _by_file(root: Path, path: Path) -> SetLimit:
    def limit(nbytes: int | None) -> None:
        if nbytes is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(str(used_bytes(root) + nbytes))

    return limit


if __name__ == "__main__":
    live_with(Path(sys.argv[1]), _by_file(Path(sys.argv[1]), Path(sys.argv[2])))
