"""Compaction by itself: off until asked for, what is old enough, at its share, in a process of its own."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from ckstore import Store
from ckstore.ops.compact.compact import compact
from ckstore.ops.compact.plan import plan
from ckstore.ops.pace import Share
from ckstore.saver import compactor, helper_start
from ckstore.saver.server.compactor import compact_all
from ckstore.store import context_of
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.meanwhile import elsewhere

_WAIT_S = 120.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    compactor._looked.clear()
    with Store.init(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start no process; return what would have been started."""
    found: list[str] = []
    monkeypatch.setattr(helper_start, "start", lambda entry, *_: found.append(entry))
    return found


def state(step: int) -> dict[str, torch.Tensor]:
    weight = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    weight[step * 100 : step * 100 + 90] += 1
    return {"w": weight}


def is_compacted(store: Store, step: int) -> bool:
    return (checkpoint_dir(store.path, "main", step) / "plain.json").exists()


def test_nothing_is_started_until_it_is_asked_for(store: Store, started: list[str]) -> None:
    for step in range(5):
        store.save(state(step), step=step)

    assert started == []
    assert not (store.path / "locks").exists()


def test_a_save_starts_it_where_something_is_old_enough_and_not_again_at_once(
    store: Store, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.config.compact_after = 0.001
    for step in range(3):
        store.save(state(step), step=step)
    assert started == []  # they are the newest

    compactor._looked.clear()
    for step in range(3, 6):
        store.save(state(step), step=step)

    assert started == [compactor.ENTRY]
    monkeypatch.setattr(compactor, "_AGAIN_S", 0.0)
    store.config.compact_after = "1d"
    store.save(state(6), step=6)
    assert started == [compactor.ENTRY]


def test_what_is_old_enough_is_compacted_and_tags_and_the_newest_stay_plain(store: Store) -> None:
    for step in range(6):
        store.save(state(step), step=step)
    store.tag("best", 1)
    store.config.compact_after = "7d"
    compact_all(context_of(store))
    assert not any(is_compacted(store, step) for step in range(6))

    store.config.compact_after, store.config.compact_keep, store.config.compact_share = 0.001, 2, 1
    compact_all(context_of(store))

    assert [step for step in range(6) if is_compacted(store, step)] == [0, 2, 3]
    assert torch.equal(store.load(0)["w"], state(0)["w"])


def test_a_plan_says_which_are_too_young(store: Store) -> None:
    for step in range(3):
        store.save(state(step), step=step)

    found = plan(context_of(store), (), None, keep_newest=1, created_before=datetime(2020, 1, 1, tzinfo=UTC))

    assert [entry.reason for entry in found.entries] == [
        "it is one of the newest 1",
        *["it was saved after 2020-01-01T00:00:00.000000Z"] * 2,
    ]


def test_a_share_rests_for_as_long_as_its_work_must_wait() -> None:
    used_s, rests = [0.0], list[float]()
    share = Share(0.1, used=lambda: used_s[0], sleep=rests.append)

    for _ in range(40):
        used_s[0] += 0.0125
        share.rest()

    assert sum(rests) == pytest.approx(0.5 * 9)
    assert max(rests) == pytest.approx(0.025 * 9)


@pytest.mark.parametrize("dropped, done, skipped", [(3, {0, 1, 2}, {3}), (4, {1}, {0, 2, 3, 4})])
def test_what_a_compaction_reads_may_be_deleted_while_it_rests(
    store: Store, dropped: int, done: set[int], skipped: set[int]
) -> None:
    """The checkpoint that it is about to encode, or the one against which it does."""
    for step in range(5):
        store.save(state(step), step=step)
    context, seconds, going = context_of(store), itertools.count(), [dropped]

    def sleep(_: float) -> None:
        while going:
            elsewhere(lambda: store.delete(going.pop(), now=True))

    report = compact(
        context, plan(context, (), None, keep_newest=1), Share(0.5, used=lambda: next(seconds), sleep=sleep)
    )

    assert {info.step for info in store.checkpoints()} == {0, 1, 2, 3, 4} - {dropped}
    assert {one.info.step for one in report.compacted} == done
    assert {one.info.step for one in report.skipped} == skipped
    assert os.listdir(store.path / "staging") == os.listdir(store.path / "trash") == []
    assert all(torch.equal(store.load(info)["w"], state(info.step)["w"]) for info in store.checkpoints())
    assert store.verify().ok
    assert not compact(context, plan(context, (), None, keep_newest=1)).skipped


@pytest.mark.slow
def test_a_history_is_compacted_beside_the_saves(store: Store) -> None:
    store.config.compact_after = 0.001
    for step in range(5):
        store.save(state(step), step=step)
        compactor._looked.clear()
    deadline_s = time.monotonic() + _WAIT_S

    while not (is_compacted(store, 0) and is_compacted(store, 1)):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)

    assert all(torch.equal(store.load(step)["w"], state(step)["w"]) for step in range(5))
