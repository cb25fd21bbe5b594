"""What is done to a store on a filesystem of the tests, one act after another, and what must be there after each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError
from tests.support.look import files_of

MIB = 2**20
Seen = dict[str, object]
"""What a user sees of a store, and of what it was told to write elsewhere."""
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Act:
    """One act.

    Attributes:
        name: What it is called.
        do: Does it; the second argument is a folder on the same filesystem, for what is exported.
    """

    name: str
    do: Callable[[Store, Path], object]


def state(seed: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, MIB, dtype=np.uint8)}


def pruned(store: Store) -> None:
    """Drop all but the newest checkpoint of the run main.

    Raises:
        CkstoreError: One was skipped, which a policy is told of by its report.
    """
    report = store.prune(RetentionPolicy(keep_last=1), "main")
    if report.skipped:
        raise CkstoreError(f"skipped: {report.skipped}")


ACTS = (
    Act("save", lambda store, _: store.save(state(4), step=4)),
    Act("replace", lambda store, _: store.save(state(9), step=1, if_exists="replace", parent=1)),
    Act("tag", lambda store, _: store.tag("best", 1)),
    Act("pin", lambda store, _: store.pin(2, "for the paper")),
    Act("annotate", lambda store, _: store.annotate(4, {"loss": 0.5})),
    Act("config", lambda store, _: setattr(store.config, "recheck_share", 0.25)),
    Act("commit", lambda store, _: store.commit(store.path.parent / "files", step=7, run="files")),
    Act("checkout", lambda store, outside: store.checkout("files@7", outside / "out")),
    Act("export", lambda store, outside: store.export("main@2", outside / "exported")),
    Act("delete", lambda store, _: store.delete(4)),
    Act("unpin", lambda store, _: store.unpin("main@2")),
    Act("prune", lambda store, _: pruned(store)),
    Act("gc", lambda store, _: [store.gc() for _ in range(3)]),
    Act("verify", lambda store, _: store.verify()),
)


def files(place: Path) -> None:
    """Make the files that are committed."""
    (place / "files").mkdir(exist_ok=True)
    (place / "files/a.txt").write_bytes(b"of the files" * 1000)


def base(path: Path) -> Store:
    """Make a store as `made_store` does, and files beside it."""
    files(path.parent)
    return made_store(path)


def made_store(path: Path) -> Store:
    """Make a store with the steps 1, 2 and 3, of which the last was deleted; nothing waits for a grace."""
    store = Store.open_or_init(path, chunk_bytes=MIB)
    for step in (1, 2, 3):
        if step not in {info.step for info in store.checkpoints()}:
            store.save(state(step), step=step)
    store.delete(3)
    store.config.grace_s = 0
    return store


def seen(store: Store, outside: Path) -> Seen:
    """Return what a user sees; everything is read."""
    found: Seen = {}
    for info in store.checkpoints():
        about = (info.metrics, sorted(info.tags))
        if info.run == "main":
            found[info.name] = (int(store.load(info)["w"].sum()), *map(str, about))
        else:
            found[info.name] = ([file.path for file in files_of(store, info)], *map(str, about))
    found["pins"] = [(pin.run, pin.step, pin.reason, pin.dangling) for pin in store.pins()]
    found["config"] = store.config.recheck_share
    found["outside"] = {
        str(path.relative_to(outside)): path.read_bytes() for path in sorted(outside.rglob("*")) if path.is_file()
    }
    return found


def cleared(store: Store) -> None:
    """Wait until gc has freed all that was left: what was removed while it was open goes when that is closed."""
    deadline = time.monotonic() + _DEADLINE_S
    while any(os.listdir(store.path / name) for name in ("staging", "trash")):
        assert time.monotonic() < deadline, [os.listdir(store.path / name) for name in ("staging", "trash")]
        store.gc()
        time.sleep(0.01)
