"""A rank is killed at every change that it makes on the filesystem, up to the publish and beyond; another try follows.

``CKSTORE_CRASH=full`` kills before each, else before some.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Ranks, Store
from tests.ranks.racers import state_of
from tests.ranks.racing import Racers
from tests.support.crashing import run_and_kill

LONG = os.environ.get("CKSTORE_CRASH") == "full"
MOST = 80
PATIENCE_S, PATIENT_S = 4.0, 120.0
STATE = {"w": np.arange(300)}


def save(store: Store, attempt: str) -> Any:
    return store.save(STATE, 5, ranks=Ranks(0, 1, attempt, timeout_s=60.0))


@pytest.mark.crash
def test_a_kill_while_one_publishes_leaves_all_or_nothing_and_another_try_goes_through(
    tmp_path: Path,
) -> None:
    for at in range(1, MOST, 1 if LONG else 7):
        store = Store.init(tmp_path / f"store-{at}")
        died = run_and_kill(functools.partial(save, store, "first"), at=at, before=True)

        again = Store.open(store.path)
        assert len(again.checkpoints()) <= 1
        info = save(again, "second")
        assert np.array_equal(again.load(5, rank=0)["w"], STATE["w"])
        assert [one.id for one in again.checkpoints()] == [info.id]
        again.gc()
        assert list((store.path / "staging").iterdir()) == []
        assert again.verify().ok
        if not died:
            assert at > 20
            return
    pytest.fail(f"more than {MOST} changes")


@pytest.mark.crash
@pytest.mark.timeout(3600 if LONG else 300)
def test_a_kill_of_one_of_two_leaves_all_or_nothing_and_the_other_knows_which(tmp_path: Path) -> None:
    """The two may publish in any order: who is killed while it does is replaced by the other one."""
    racers = Racers(1)
    try:
        for at in range(4, 2 * MOST) if LONG else (12, 30, 48):
            store = Store.init(tmp_path / f"store-{at}")
            common = {"store": str(store.path), "step": 5, "world_size": 2}
            racers.say(0, **common, rank=1, attempt="first", timeout=PATIENCE_S)
            run_and_kill(
                lambda store=store: store.save(  # type: ignore[misc]
                    state_of(0, 5), 5, ranks=Ranks(0, 2, "first", timeout_s=PATIENCE_S)
                ),
                at=at,
                before=True,
            )
            answer = racers.answer(0)

            again = Store.open(store.path)
            there = [info.id for info in again.checkpoints()]
            if there:
                assert [answer.get("id")] == there, (at, answer)
                assert_whole(again)
            else:
                assert answer["error"] in ("MissingRanks", "RankFailed"), (at, answer)
                assert "rank 0" in answer["message"], (at, answer)
                racers.say(0, **common, rank=1, attempt="second", timeout=PATIENT_S)
                info = again.save(state_of(0, 5), 5, ranks=Ranks(0, 2, "second", timeout_s=PATIENT_S))
                assert racers.answer(0) == {"id": info.id}
                assert_whole(again)
            again.gc()
            assert list((store.path / "staging").iterdir()) == []
            assert again.verify().ok
    finally:
        racers.close()


def assert_whole(store: Store) -> None:
    loaded = store.load(5)
    assert sorted(loaded) == [0, 1]
    for rank in (0, 1):
        assert np.array_equal(loaded[rank]["w"], np.asarray(state_of(rank, 5)["w"]))
