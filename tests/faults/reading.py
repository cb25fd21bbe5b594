"""Every public method that reads, on a disk that fails at one call: ``python -m tests.faults.reading STORE LOG STEP``.

It runs with the fault library preloaded, opens the store for reading only, so that a case leaves nothing for the next,
and prints for each method, as JSON, how many calls were made to fail and what was wrong with what it raised, or with
what it returned where it raised nothing. `STEP`: one call in so many is tried; if that is not each, a method
is tried in two of the ways, in turn.
"""

from __future__ import annotations

import errno
import gc
import json
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

import ckstore
from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError
from tests.faults.shim import Family, Fault, Preloaded
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.descriptors import open_below
from tests.support.in_full import in_full
from tests.support.look import files_of, leaves_of
from tests.support.plans import plan_of

STATE = {"w": np.arange(600_000, dtype=np.float32), "small": np.arange(9), "text": "x" * 5000, "n": 3}
WAYS = {
    "reading": (Family.READ, errno.EIO),
    "opening": (Family.OPEN, errno.EIO),
    "too many files": (Family.OPEN, errno.EMFILE),
    "locking": (Family.LOCK, errno.ENOLCK),
    "server gone": (Family.READ | Family.OPEN | Family.LOCK, errno.ESTALE),
}


def make(path: Path) -> None:
    """Make the store that is read: two states and some files, a tag, a pin and added metrics."""
    with Store.init(path, chunk_bytes=2**20) as store:
        (path.parent / "file").write_bytes(bytes(100_000))
        store.commit(path.parent / "file", 3)
        torch.save({"w": torch.zeros(100_000)}, path.parent / "state.pt")
        store.commit(path.parent / "state.pt", 4)
        store.save(STATE, 1, tags=["first"])
        store.save({**STATE, "small": np.arange(10)}, 2)
        store.pin(1, "kept")
        store.annotate(2, {"loss": 1.0}, note="a note")
        store.config.retention = RetentionPolicy(keep_last=5)


def _inside(read: Callable[[Any], object]) -> Callable[[Store], object]:
    def act(store: Store) -> object:
        with store.open_checkpoint(2) as checkpoint:
            return read(checkpoint)

    return act


def _fresh(store: Store, write: Callable[[Path], object]) -> object:
    out = store.path.parent / "out"
    if out.is_file():
        out.unlink()
    shutil.rmtree(out, ignore_errors=True)
    return write(out)


def _publish(store: Store, out: Path) -> object:
    out.mkdir()
    (out / "config.json").write_text("{}")
    names: dict[str, Any] = {
        "select": lambda name: name in ("w", "small"),
        "add": [out / "config.json"],
        "timeout_s": 0,
    }
    versions: list[Any] = []
    for step in (1, 2):
        with store.publish("main", out / "weights", ref=f"main@{step}", **names) as publisher:
            versions += [(version.id, version.is_full, version.reason) for version in publisher]
    # The list is empty if another process has renamed or deleted the run.
    return versions, [load_file(path) for path in sorted(out.glob("weights/weight_v*/model.safetensors"))]


def _read_file(store: Store) -> bytes:
    with store.open_checkpoint(3) as checkpoint, checkpoint.open_file("file") as file:
        return file.read()


def _digest(store: Store) -> str:
    return next(path.name for path in sorted(blobs_dir(store.path, "main", 1).iterdir()))


ACTS: dict[str, Callable[[Store], object]] = {
    "open": lambda store: Store(store.path, readonly=True),
    "load": lambda store: store.load(2),
    "load of a file": lambda store: store.load(4, file="state.pt"),
    "load latest": lambda store: store.load(),
    "load by tag": lambda store: store.load("first", select="w"),
    "load latest-valid": lambda store: store.load("latest-valid", verify=False),
    "load mapped": lambda store: store.load(2, mmap=True),
    "load_into": lambda store: store.load_into({"w": np.zeros(600_000, np.float32)}, 2, strict=False),
    "open_checkpoint": _inside(lambda checkpoint: checkpoint["w"]),
    "open_checkpoint of a path": lambda store: ckstore.open_checkpoint(checkpoint_dir(store.path, "main", 2)).close(),
    "slice": _inside(lambda checkpoint: checkpoint.slice("w")[10:500_000]),
    "slice by an index": _inside(lambda checkpoint: checkpoint.slice("w")[10]),
    "open_file": _read_file,
    "load of an open one": _inside(lambda checkpoint: checkpoint.load(select="small")),
    "info": lambda store: store.info("first"),
    "latest valid": lambda store: store.latest(valid=True),
    "checkpoints": lambda store: store.checkpoints(),
    "runs": lambda store: store.runs(),
    "follow": lambda store: list(store.follow(timeout_s=0)),
    "leaves": lambda store: leaves_of(store, 1),
    "files": lambda store: files_of(store, 3),
    "directory of an open one": _inside(lambda checkpoint: checkpoint.directory),
    "kept_bytes of an open one": _inside(lambda checkpoint: checkpoint.kept_bytes),
    "saved_bytes of an open one": _inside(lambda checkpoint: checkpoint.saved_bytes),
    "diff": lambda store: store.diff(1, 2, values=True),
    "du": lambda store: store.du(),
    "why": lambda store: store.why(_digest(store)),
    "gc that is dry": lambda store: store.gc(dry_run=True),
    "doctor": lambda store: store.doctor(),
    "tags": lambda store: store.tags(),
    "pins": lambda store: store.pins(),
    "retention": lambda store: store.config.retention,
    "make_room": lambda store: store.config.make_room,
    "read_back": lambda store: store.config.read_back,
    "recheck_share": lambda store: store.config.recheck_share,
    "health_share": lambda store: store.config.health_share,
    "grace_s": lambda store: store.config.grace_s,
    "prune that is dry": lambda store: plan_of(store, RetentionPolicy(keep_last=1)),
    "verify": lambda store: store.verify(),
    "verify quickly": lambda store: store.verify(quick=True),
    "checkout": lambda store: _fresh(store, lambda out: store.checkout(3, out)),
    "export": lambda store: _fresh(store, lambda out: store.export_safetensors(1, out)),
    "export to a torch file": lambda store: _fresh(store, lambda out: store.export(1, out, format="torch")),
    "publish": lambda store: _fresh(store, lambda out: _publish(store, out)),
    "report": lambda store: store.report(),
    "metrics": lambda store: store.metrics(),
    "events": lambda store: store.events(),
    "undoable": lambda store: store.undoable(),
    "best": lambda store: store.best("loss"),
    "export for DCP": lambda store: _fresh(store, lambda out: store.export(1, out, format="dcp")),
}

MAY_SAY_LESS = {
    *("open", "load_into", "info", "latest valid", "checkpoints", "runs", "follow", "gc that is dry"),
    *("doctor", "prune that is dry", "verify", "verify quickly", "report", "metrics", "events", "undoable", "best"),
}
"""They report what cannot be read, leave out annotations and estimates, or see other processes; others answer alike."""


def try_act(shim: Preloaded, store: Path, log: Path, name: str, one_in: int) -> dict[str, Any]:
    """Make every call of an act fail in every way; return how often, and what was wrong."""
    act, hits, wrong = ACTS[name], 0, []
    right = in_full(act(Store(store, readonly=True)))
    turn = [*ACTS].index(name)
    for way in WAYS if one_in == 1 else ([*WAYS][turn % len(WAYS)], [*WAYS][(turn + 2) % len(WAYS)]):
        families, error = WAYS[way]
        at = 1
        while True:
            handle = Store(store, readonly=True)
            shim.arm(Fault("error", at, error, families=families), store, log)
            try:
                answer = in_full(act(handle))
                may_differ = name in MAY_SAY_LESS or (name == "load latest-valid" and error == errno.EIO)  # damage
                if answer != right and not may_differ:
                    wrong.append(f"{way}, call {at}: another answer: {answer[:500]}")
            except CkstoreError:
                pass
            except BaseException:
                wrong.append(f"{way}, call {at}: {traceback.format_exc()}")
            shim.disarm()
            if not shim.hits:
                break
            hits += 1
            gc.collect()
            wrong += [f"{way}, call {at}: left open: {name}" for name in open_below(store).values()]
            at += one_in
        act(Store(store, readonly=True))
    return {"hits": hits, "wrong": wrong}


def main() -> None:
    """Try every act, or these."""
    store, log, one_in, names = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or [*ACTS]
    warnings.simplefilter("ignore")
    make(store)
    shim = Preloaded()
    for name in names:  # what is imported on the way is read too, and is not below the store
        ACTS[name](Store(store, readonly=True))
    gc.freeze()  # what is imported is no garbage, and would be looked at after each case
    print(json.dumps({name: try_act(shim, store, log, name, one_in) for name in names}))


if __name__ == "__main__":
    main()
