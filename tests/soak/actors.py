"""One process of a crowd: ``python -m tests.soak.actors ROLE STORE SECONDS SEED``.

Each works until its time is up, then prints what it did as one line of JSON. Whatever is not as it should be
is an exception, and so an exit status that is not 0. What a checkpoint must hold follows from its run and step.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ckstore import Store
from ckstore.errors import CkstoreError, NoSuchRef
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention import RetentionPolicy
from tests.support.descriptors import open_below

MIB = 2**20
KEEP_LAST = 3
_MAPPED_AT_ONCE = 6
_BASE = np.random.default_rng(0).integers(0, 256, 2 * MIB, dtype=np.uint8)


def state_of(run: str, step: int) -> dict[str, Any]:
    """Return what is saved: a base that all have, bytes that come back every seven steps, and small tensors."""
    turn = np.random.default_rng(100 + step % 7).integers(0, 256, MIB + 100, dtype=np.uint8)
    own = np.random.default_rng([step, ord(run[0])]).integers(0, 256, 40_000, dtype=np.uint8)
    return {"base": _BASE, "turn": turn, "own": own, "small": [np.full(50, step + i) for i in range(20)], "step": step}


def same(loaded: dict[str, Any], run: str, step: int) -> bool:
    """Whether it is, bit for bit, what was saved."""
    wanted = state_of(run, step)
    arrays = [(loaded[key], wanted[key]) for key in ("base", "turn", "own")]
    arrays += zip(loaded["small"], wanted["small"], strict=True)
    return loaded["step"] == step and all(np.array_equal(one, other) for one, other in arrays)


def check_same(loaded: dict[str, Any], info: CheckpointInfo, when: str) -> None:
    """Raise if it is not what was saved."""
    if not same(loaded, info.run, info.step):
        raise RuntimeError(f"{info.name} has other bytes {when}")


def saver(store: Store, seed: int) -> Callable[[Counter[str]], None]:
    """Save the next step of a run of its own."""
    run = "ab"[seed % 2]

    def act(done: Counter[str]) -> None:
        newest = store.latest(run=run)
        step = 0 if newest is None else newest.step + 1
        info = store.save(state_of(run, step), step=step, run=run)
        if not info.catalogued:
            raise RuntimeError(f"{info.name} is not in the catalog")
        done["saves"] += 1
        done["last"] = step

    return act


def collector(store: Store, seed: int) -> Callable[[Counter[str]], None]:
    """Keep the last three of each run, and now and then drop one more; free what they leave."""
    draw = random.Random(seed)

    def act(done: Counter[str]) -> None:
        report = store.prune(RetentionPolicy(keep_last=KEEP_LAST))
        done["gcs"] += 1
        done["freed"] += report.freed_count
        done["held"] += len(report.held)
        if report.linked_outside:
            raise RuntimeError(f"nothing links to {report.linked_outside}")
        infos = store.checkpoints()
        if len(infos) > 2 * KEEP_LAST and draw.random() < 0.3:
            try:
                store.delete(infos[0])
                done["deletes"] += 1
            except CkstoreError as error:  # a reader has it, or retention of another turn was first
                done[type(error).__name__] += 1

    return act


def reader(store: Store, seed: int) -> Callable[[Counter[str]], None]:
    """Map checkpoints and look at them again while others drop them; or keep one open and read it bit by bit."""
    draw = random.Random(seed)
    mapped: deque[tuple[CheckpointInfo, Any]] = deque(maxlen=_MAPPED_AT_ONCE)

    def act(done: Counter[str]) -> None:
        infos = store.checkpoints()
        if not infos:
            return
        info = draw.choice(infos)
        try:
            if draw.random() < 0.3:
                with store.open_checkpoint(info) as opened:
                    check_same(opened.load(), info, "while it is open")
                done["opened"] += 1
            else:
                mapped.append((info, store.load(info, mmap=True)))
                done["mapped"] += 1
        except NoSuchRef:  # dropped since it was listed, and said so before anything was read
            done["gone"] += 1
        for kept, loaded in mapped:
            check_same(loaded, kept, "while it is mapped")

    return act


ROLES: dict[str, Callable[[Store, int], Callable[[Counter[str]], None]]] = {
    "saver": saver,
    "collector": collector,
    "reader": reader,
}


def main() -> None:
    """Act until the time is up."""
    role, path, seconds, seed = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    done: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    with Store.open(path) as store:
        act = ROLES[role](store, seed)
        while time.monotonic() < deadline:
            act(done)
    left = open_below(path)
    if left:
        raise RuntimeError(f"left open: {left}")
    print(json.dumps({"role": role, **done}), flush=True)


if __name__ == "__main__":
    main()
