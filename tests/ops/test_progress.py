"""`progress` is called in the caller's thread, never goes back, and ends with everything."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Progress, Store
from tests.support.damage import MIB


def state() -> dict[str, Any]:
    return {"big": np.arange(4 * MIB, dtype=np.uint8), "small": [np.arange(9), np.arange(5)]}


def committed(store: Store, folder: Path, progress: Progress) -> None:
    (folder / "file").write_bytes(os.urandom(3 * MIB))
    store.commit(folder / "file", 9, progress=progress)


ACTS: dict[str, Callable[[Store, Path, Progress], object]] = {
    "save": lambda store, _, progress: store.save(state(), 2, progress=progress),
    "save what is new": lambda store, _, progress: store.save({"w": np.ones(2 * MIB)}, 2, progress=progress),
    "save nothing": lambda store, _, progress: store.save({}, 2, progress=progress),
    "commit": committed,
    "load": lambda store, _, progress: store.load(1, progress=progress),
    "load mapped": lambda store, _, progress: store.load(1, mmap=True, progress=progress),
    "load_into": lambda store, _, progress: store.load_into(state(), 1, progress=progress),
    "checkout": lambda store, folder, progress: store.checkout(1, folder / "out", progress=progress),
    "export": lambda store, folder, progress: store.export_safetensors(1, folder / "out", progress=progress),
    "verify": lambda store, _, progress: store.verify(progress=progress),
}


@pytest.mark.parametrize("name", ACTS)
def test_it_ends_with_everything(name: str, store: Store, tmp_path: Path) -> None:
    store.save(state(), 1)
    shown: list[tuple[int, int]] = []
    threads: set[int] = set()

    def progress(done_bytes: int, all_bytes: int) -> None:
        shown.append((done_bytes, all_bytes))
        threads.add(threading.get_ident())

    ACTS[name](store, tmp_path, progress)

    assert threads == {threading.get_ident()}
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    assert shown[-1][0] == shown[-1][1]


class _Stop(Exception):
    pass


@pytest.mark.parametrize("name", ["save", "commit"])
def test_what_it_raises_ends_a_save_that_publishes_nothing(name: str, store: Store, tmp_path: Path) -> None:
    store.save(state(), 1)

    def progress(*_: int) -> None:
        raise _Stop

    with pytest.raises(_Stop):
        ACTS[name](store, tmp_path, progress)
    assert [info.step for info in store.checkpoints()] == [1]
    assert list((store.path / "staging").iterdir()) == []
