"""A rank whose storage fails for a moment tries again while the others wait: for them it is a slow rank."""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CannotStore, CheckpointInfo, NotSaved, RankFailed, Ranks, Store
from ckstore.errors import CkstoreError
from ckstore.ranks.file_rendezvous import FileRendezvous
from ckstore.ranks.rank_identity import RankIdentity
from tests.support.failing_sync import FOR_GOOD, FailingSync
from tests.support.stores import check_store

WORLD = 3
TIMEOUT_S = 120.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def is_manifest(path: str) -> bool:
    return path.endswith("/manifest.json")


def is_blob(path: str) -> bool:
    return "/blobs/" in path


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str], bool]], FailingSync]]:
    made: list[FailingSync] = []

    def make(counts: Callable[[str], bool]) -> FailingSync:
        sync = FailingSync(counts)
        monkeypatch.setattr(os, "fsync", sync)
        made.append(sync)
        return sync

    yield make
    for sync in made:
        sync.let_go()


def together(store: Store, *, step: int = 1, states: dict[int, Any] | None = None, **given: Any) -> dict[int, Any]:
    """Save as all ranks, in threads; return what each got, or raised."""
    got: dict[int, Any] = {}
    timeout_s = given.pop("timeout_s", TIMEOUT_S)

    def work(rank: int) -> None:
        state = (states or {}).get(rank, {"w": np.full(3 * 10**5, rank), "rank": rank})
        try:
            got[rank] = Store.open(store.path).save(
                state, step, ranks=Ranks(rank, WORLD, "a", timeout_s=timeout_s), **given
            )
        except BaseException as error:
            got[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORLD)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return got


def check(store: Store, sync: FailingSync) -> None:
    sync.arm(0, 0)
    sync.let_go()
    with Store.open(store.path) as opened:
        opened.gc()
    check_store(store.path)


@pytest.mark.parametrize("tries", [1, 2, 4])
def test_parts_and_the_whole_are_tried_again_and_all_ranks_get_one_checkpoint(
    store: Store, failing: Callable[..., FailingSync], tries: int
) -> None:
    sync = failing(is_manifest)
    sync.arm(1, tries)

    got = together(store, retries=5)

    (info,) = store.checkpoints(superseded=True)
    assert {one.id for one in got.values()} == {info.id}
    assert len(sync.failed) == tries
    assert sorted(store.load(1)) == [0, 1, 2]
    assert any("tries, since the first failed" in text for one in got.values() for text in one.warnings)
    check(store, sync)


def test_when_each_try_to_publish_fails_once_more_the_whole_appears_once(
    store: Store, failing: Callable[..., FailingSync], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifests of the parts are synced first, so what comes after three of them is the whole."""
    sync = failing(is_manifest)
    sync.arm(1, 0)
    seen: list[str] = []
    fails = {WORLD, WORLD + 1}

    def counts(path: str) -> bool:
        seen.append(path)
        if len(seen) - 1 in fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return False

    sync._counts = lambda path: is_manifest(path) and counts(path)
    in_pauses: list[list[Path]] = []
    monkeypatch.setattr(
        "ckstore.ranks.work.pause",
        lambda *_: in_pauses.append(list((store.path / "staging").glob("*/publishing-*.json"))),
    )

    got = together(store, retries=3)

    assert len(seen) == WORLD + 3
    # A kill there leaves nothing that looks published and lost: the others would give up instead of publishing.
    assert in_pauses == [[], []]
    (info,) = store.checkpoints(superseded=True)
    assert {one.id for one in got.values()} == {info.id}
    check(store, sync)


def test_the_others_know_which_directory_the_next_try_renames(store: Store) -> None:
    """They move it away if this rank stands still."""
    layout, who = store._context.layout, RankIdentity.here("main", 1, 0, world_size=2, attempt="a")
    with FileRendezvous.enter(layout, who) as meeting:
        meeting.say_publishing("first")
        meeting.take_back_publishing()
        meeting.say_publishing("second")
        assert meeting.fence()[0]["staging"] == "second"
        meeting.take_back_publishing()

        with pytest.raises(RankFailed, match="gave up on"):
            meeting.say_publishing("third")


def test_the_patience_of_a_rank_ends_with_that_of_the_others(store: Store, failing: Callable[..., FailingSync]) -> None:
    sync = failing(is_blob)
    sync.arm(1, FOR_GOOD)
    begun = time.monotonic()

    got = together(store, timeout_s=4.0, try_for_s=60)

    assert time.monotonic() - begun < 30
    assert all(isinstance(one, CkstoreError) for one in got.values())
    assert store.checkpoints() == []
    check(store, sync)


def test_a_failure_for_good_is_tolerated_by_all_ranks_or_by_none(
    store: Store, failing: Callable[..., FailingSync]
) -> None:
    sync = failing(is_blob)
    sync.arm(1, FOR_GOOD)
    same = {rank: {"w": np.full(3 * 10**5, 5)} for rank in range(WORLD)}

    got = together(store, states={**same, 2: {"n": 2}}, retries=0, on_failure="warn")

    assert {type(one) for one in got.values()} == {NotSaved}
    assert isinstance(got[2].error, RankFailed)
    assert got[2].error.of_storage
    sync.arm(0, 0)
    again = together(store, on_failure="warn")
    assert {type(one) for one in again.values()} == {CheckpointInfo}
    check(store, sync)


def test_a_mistake_of_one_rank_is_tolerated_by_none(store: Store) -> None:
    got = together(store, states={1: {"w": object()}}, on_failure="warn")

    assert isinstance(got.pop(1), CannotStore)
    assert {type(one) for one in got.values()} == {RankFailed}
    assert store.checkpoints() == []
