"""A background save that fails is tried again from the copy; its pauses end when the trainer gives it up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckstore import NotSaved, Store
from ckstore.errors import InsufficientSpace, SaveAbandoned
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.saver.test_trainer import is_gone, trainer
from tests.support.stores import check_store

Strike = Callable[..., Path]
OFTEN = 10**6


def test_a_save_is_tried_again_from_the_copy_although_the_state_has_changed(store: Store, strike: Strike) -> None:
    strike("syncing", "full", 2)
    weight = np.full(400_000, 7, np.float32)
    pending = store.save_async({"w": weight}, step=1)
    weight[:] = 8

    info = pending.result(DEADLINE_S)

    assert (store.load(info)["w"] == 7).all()
    assert info.counters is not None
    assert info.counters.retry_count == 2
    assert [text for text in info.warnings if "main@1 took 3 tries" in text]
    assert "waiting" in [event.name for event in pending.events]
    assert [event.event for event in store.events()].count("retried") == 2
    metrics = {metric.name: metric.samples for metric in store._context.totals.metrics()}
    assert metrics["ckstore_save_retries"] == {"": 2}
    check_store(store.path)


def test_the_saves_behind_one_that_is_tried_again_keep_their_order(store: Store, strike: Strike) -> None:
    strike("syncing", "full", 1)
    pendings = [store.save_async({"w": np.full(9, i)}, step=i, max_in_flight=3) for i in range(3)]

    infos = [pending.result(DEADLINE_S) for pending in pendings]

    assert [info.sequence for info in infos] == sorted(info.sequence for info in infos)
    assert [info.parent for info in infos[1:]] == [info.id for info in infos[:2]]


def test_a_saver_in_a_pause_is_not_taken_for_stuck(store: Store, strike: Strike) -> None:
    strike("syncing", "full", OFTEN)

    error = store.save_async({"w": np.ones(9)}, step=1, wait_for_space_s=6, retries=0, stall_timeout_s=1.5).exception(
        DEADLINE_S
    )

    assert type(error) is InsufficientSpace
    store.background.wait()
    check_store(store.path)


@pytest.mark.parametrize("how", ["cancel", "flush"])
def test_a_pause_ends_when_the_save_is_given_up(store: Store, strike: Strike, how: str) -> None:
    strike("syncing", "full", OFTEN)
    pending = store.save_async({"w": np.ones(9)}, step=1, wait_for_space_s=600)
    wait_for(lambda: len([one for one in store.events() if one.event == "retried"]) >= 3, "it is in a long pause")

    begun = time.monotonic()
    if how == "cancel":
        assert pending.cancel()
    else:
        assert not store.background.flush(0.1)
    error = pending.exception(DEADLINE_S)

    assert time.monotonic() - begun < 3
    assert type(error) is SaveAbandoned
    assert store.checkpoints() == []
    assert os.listdir(store.path / "staging") == []


def test_a_save_behind_one_that_is_given_up_in_a_pause_is_made(store: Store, strike: Strike) -> None:
    strike("syncing", "full", 3)
    first = store.save_async({"w": np.ones(9)}, step=1, wait_for_space_s=600)
    second = store.save_async({"w": np.zeros(9)}, step=2, max_in_flight=2)
    wait_for(lambda: len([one for one in store.events() if one.event == "retried"]) >= 3, "it is in a long pause")
    assert first.cancel()

    assert second.result(DEADLINE_S).step == 2
    assert type(first.exception(DEADLINE_S)) is SaveAbandoned
    assert [info.step for info in store.checkpoints()] == [2]


def test_a_save_whose_try_failed_after_the_trainer_had_agreed_can_be_given_up(store: Store, strike: Strike) -> None:
    """As on btrfs, where the rename itself finds the disk full."""
    strike("granted", "full", OFTEN)
    pending = store.save_async({"w": np.ones(9)}, step=1, wait_for_space_s=600)
    wait_for(lambda: len([one for one in store.events() if one.event == "retried"]) >= 3, "it is in a long pause")
    assert "committing" in [event.name for event in pending.events]

    # On a busy machine the pause may be over, and a try that is committing cannot be given up; its pause is longer.
    wait_for(pending.cancel, "it is given up in a pause")
    assert type(pending.exception(5)) is SaveAbandoned
    assert store.checkpoints() == []


@pytest.mark.crash
def test_a_save_in_a_pause_is_made_although_its_trainer_has_ended(tmp_path: Path, strike: Strike) -> None:
    strike("syncing", "full", 2)
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    with trainer(store.path, "struck") as (running, pid):
        wait_for(lambda: any(one.event == "retried" for one in store.events()), "it is in a pause")
        running.kill()
        running.wait()
        wait_for(lambda: is_gone(pid), "the saver has ended")

    assert store.load(7)["n"] == 7
    check_store(store.path)


def test_a_failure_that_is_tolerated_is_raised_by_its_result_alone(store: Store, strike: Strike) -> None:
    store.config.failed_saves_most = 1
    with Store.open(store.path) as training:
        strike("syncing", "full", OFTEN)
        first = training.save_async({"w": np.ones(9)}, step=1, retries=0, on_failure="warn")
        assert training.background.wait(DEADLINE_S)
        assert not training.background.flush(DEADLINE_S) or first.done()
        ended = first.ended()
        assert isinstance(ended, NotSaved)
        assert (ended.name, ended.in_a_row) == ("main@1", 1)
        with pytest.raises(InsufficientSpace):
            first.result()

        training.save_async({"w": np.ones(9)}, step=2, retries=0, on_failure="warn")  # one more than may fail
        with pytest.raises(InsufficientSpace):
            training.background.wait(DEADLINE_S)


def test_a_flush_says_that_a_failure_is_not_durable_although_it_is_tolerated(store: Store, strike: Strike) -> None:
    strike("syncing", "full", OFTEN)
    store.save_async({"w": np.ones(9)}, step=1, retries=1, on_failure="warn")

    assert not store.background.flush(DEADLINE_S)


def test_a_save_that_works_resets_the_count_of_failures(store: Store, strike: Strike) -> None:
    strike("syncing", "full", 1)
    first = store.save_async({"w": np.ones(9)}, step=1, retries=0, on_failure="warn").ended(DEADLINE_S)
    second = store.save_async({"w": np.ones(9)}, step=2, on_failure="warn").ended(DEADLINE_S)

    assert not first
    assert second
    assert store.save({"w": np.ones(9)}, step=3).step == 3
    assert store._context.totals._tolerated_in_a_row == 0
