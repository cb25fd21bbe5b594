"""A small state is saved with few syncs: one file for its tensors, no name synced twice, no commit of the index."""

from __future__ import annotations

import gc
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.catalog import connection as connections
from ckstore.ops import api_calls
from ckstore.ops.save import save as saving
from tests.support.stores import check_store

_NORMAL, _FULL = 1, 2
"""Values of ``PRAGMA synchronous``."""


def state(value: int, count: int = 100) -> dict[str, Any]:
    return {f"w{i:02}": np.full(7500, value * count + i, dtype=np.float32) for i in range(count)}


@contextmanager
def synced(monkeypatch: pytest.MonkeyPatch, top: Path) -> Iterator[list[str]]:
    """Give the places, below `top`, of all that Python makes durable, in order; names of saves and blobs are cut."""
    found: list[str] = []
    real = os.fsync

    def sync(fd: int) -> None:
        parts = Path(os.readlink(f"/proc/self/fd/{fd}")).relative_to(top.resolve()).parts
        found.append("/".join("…" if "." in part[1:] and "json" not in part else part.split("-")[0] for part in parts))
        real(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", sync)
        yield found


OWN = ["staging/…/blobs/xxh3", "staging/…/manifest.json", "staging/…/blobs", "staging/…"]


def test_a_run_that_is_as_this_process_left_it_keeps_its_durable_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with synced(monkeypatch, store.path) as first:
        store.save(state(0), step=0)
    with synced(monkeypatch, store.path) as second:
        store.save(state(1), step=1)

    assert first == [*OWN, "checkpoints/main", "checkpoints", "staging"]
    assert second == [*OWN, "checkpoints/main", "staging"]


def test_a_run_that_others_changed_or_made_again_is_synced_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(state(0), step=0)
    Store.open(store.path).save(state(1), step=1)
    with synced(monkeypatch, store.path) as beside_others:
        store.save(state(2), step=2)
    for step in range(3):
        store.delete(step)
    os.rmdir(store.path / "checkpoints" / "main")
    with synced(monkeypatch, store.path) as made_again:
        store.save(state(3), step=3)
    with synced(monkeypatch, store.path) as new_run:
        store.save(state(4), step=4, run="new")

    for places in (beside_others, made_again, new_run):
        assert "checkpoints" in places


def test_the_commit_of_the_rows_of_a_save_is_not_synced_for_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[int] = []
    real = connections.set_journal

    def noted(connection: sqlite3.Connection, *, may_map: bool, durable: bool = True) -> None:
        real(connection, may_map=may_map, durable=durable)
        levels.append(connection.execute("PRAGMA synchronous").fetchall()[0][0])

    monkeypatch.setattr(connections, "set_journal", noted)
    store.save(state(0), step=0)
    assert levels == [_NORMAL]

    store.reindex()
    assert set(levels[1:]) == {_FULL}


@pytest.mark.parametrize("most_s, runs", [(60.0, False), (0.0, True)])
def test_the_garbage_collector_is_paused_but_not_during_a_long_wait_for_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch, most_s: float, runs: bool
) -> None:
    for module in (api_calls, saving):
        monkeypatch.setattr(module, "GC_PAUSED_MOST_S", most_s)
    found: list[bool] = []
    real = os.fsync

    def sync(fd: int) -> None:
        found.append(gc.isenabled())
        real(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", sync)
        store.save(state(0), step=0)

    assert len(found) >= 4
    assert {*found} == {runs}
    assert gc.isenabled()
    check_store(store.path)
