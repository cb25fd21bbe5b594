"""A checkpoint that is loaded while a background save is pending is the parent of the next save."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CheckpointInfo, DamagedBlob, StepExists, Store
from ckstore.saver.client.pending import PendingSave
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.support.damage import blobs_by_size, flip
from tests.support.stores import check_store

Strike = Callable[..., Path]
Pending = Callable[..., PendingSave]
FROZEN = 4


def state_of(number: int) -> dict[str, Any]:
    return {"base": np.zeros(FROZEN << 20, np.uint8), "w": np.full(1000, number)}


def saved(store: Store, step: int, state: Any = None) -> PendingSave:
    return store.save_async(state_of(step) if state is None else state, step=step, max_in_flight=4)


@pytest.fixture
def pending(store: Store, strike: Strike, request: pytest.FixtureRequest) -> Iterator[Pending]:
    """Begin a save whose saver stands still, once or as often as asked, behind steps 1 and 2.

    At the end the store is whole.
    """
    for step in (1, 2):
        store.save(state_of(step), step=step)
    folder = strike("staging", "stop", getattr(request, "param", 1))

    def begin(step: int, state: Any = None) -> PendingSave:
        made = saved(store, step, state)
        wait_for((folder / "struck-0").exists, "the saver stands still")
        return made

    yield begin
    check_store(store.path)


def send(store: Store, number: int) -> None:
    pid = store.background._client().pid()
    assert pid is not None
    os.kill(pid, number)


def name_of(store: Store, id: str | None) -> str:
    return "" if id is None else store.info(id).name


def parents(store: Store, *infos: CheckpointInfo) -> list[str]:
    return [name_of(store, info.parent) for info in infos]


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGKILL], ids=["same saver", "another saver"])
def test_it_is_the_parent_of_the_next_save_in_the_foreground(store: Store, pending: Pending, how: int) -> None:
    before = pending(3)
    store.load(1)
    send(store, how)
    first = before.result(DEADLINE_S)

    second = store.save(state_of(4), step=4)
    third = store.save(state_of(5), step=5)

    assert parents(store, first, second, third) == ["main@2", "main@1", "main@4"]


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGKILL], ids=["same saver", "another saver"])
def test_it_is_the_parent_of_the_next_save_after_the_pending_one(store: Store, pending: Pending, how: int) -> None:
    before = pending(3)
    store.load(1)
    send(store, how)
    first = before.result(DEADLINE_S)

    second = saved(store, 4).result(DEADLINE_S)
    third = saved(store, 5).result(DEADLINE_S)

    assert parents(store, first, second, third) == ["main@2", "main@1", "main@4"]


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGKILL], ids=["same saver", "another saver"])
def test_it_is_the_parent_of_the_next_save_behind_the_pending_one(store: Store, pending: Pending, how: int) -> None:
    begun = [pending(3)]
    store.load(1)
    begun += [saved(store, 4), saved(store, 5)]
    store.load(2)
    begun.append(saved(store, 6))
    send(store, how)

    infos = [save.result(DEADLINE_S) for save in begun]
    last = store.save(state_of(7), step=7)

    assert parents(store, *infos, last) == ["main@2", "main@1", "main@4", "main@2", "main@6"]


@pytest.mark.parametrize("pending", [2], indirect=True)
def test_a_save_behind_the_one_that_continues_it_continues_that_one(
    store: Store, pending: Pending, tmp_path: Path
) -> None:
    begun = [pending(3)]
    store.load(1)
    begun.append(saved(store, 4))
    send(store, signal.SIGCONT)
    begun[0].result(DEADLINE_S)
    wait_for((tmp_path / "struck" / "struck-1").exists, "the saver stands still in the second save")
    begun.append(saved(store, 5))
    send(store, signal.SIGCONT)

    infos = [save.result(DEADLINE_S) for save in begun]

    assert parents(store, *infos) == ["main@2", "main@1", "main@4"]


def test_it_is_the_parent_of_the_next_save_after_one_that_was_refused(store: Store, pending: Pending) -> None:
    before = pending(3)
    store.load(1)
    refused = saved(store, 2, state_of(9))  # there is another one
    send(store, signal.SIGCONT)
    first = before.result(DEADLINE_S)
    assert isinstance(refused.exception(DEADLINE_S), StepExists)

    second = store.save(state_of(4), step=4)

    assert parents(store, first, second) == ["main@2", "main@1"]


def test_the_same_checkpoint_that_is_loaded_again_is_the_parent_again(store: Store, pending: Pending) -> None:
    store.load(1)
    begun = [pending(3)]
    store.load(1)
    begun.append(saved(store, 4))
    send(store, signal.SIGCONT)

    infos = [save.result(DEADLINE_S) for save in begun]

    assert parents(store, *infos) == ["main@1", "main@1"]


def test_a_load_that_failed_midway_leaves_no_parent_each_time(store: Store, pending: Pending) -> None:
    store.save({"a": np.arange(400_000), "b": np.arange(300_000)}, step=1, run="other")
    flip(blobs_by_size(store, "other@1")[0], keep_time=True)
    target = {"a": np.zeros(400_000, np.int64), "b": np.zeros(300_000, np.int64)}
    with pytest.raises(DamagedBlob):
        store.load_into(target, "other@1")
    before = pending(3)
    with pytest.raises(DamagedBlob):
        store.load_into(target, "other@1")
    send(store, signal.SIGCONT)
    first = before.result(DEADLINE_S)

    second = store.save(state_of(4), step=4)

    assert parents(store, first, second) == ["", ""]
    assert [note for note in second.warnings if "has no parent" in note]
    store.delete("other@1", now=True)


def test_tensors_named_as_unchanged_are_copied_after_it(store: Store, pending: Pending) -> None:
    state = state_of(3)
    state["base"][-1] = 1  # one chunk of four, in which a sample need not be
    before = pending(3, state)
    store.load_into(state, 1)
    send(store, signal.SIGCONT)
    before.result(DEADLINE_S)
    state["w"] += 1

    store.save_async(state, step=4, unchanged="base").result(DEADLINE_S)

    assert store.load(4)["base"][-1] == 0
