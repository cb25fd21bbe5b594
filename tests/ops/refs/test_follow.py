"""`follow` gives each checkpoint of a run in order, whatever is dropped, and however late it looks.

``CKSTORE_CRASH=full`` follows 1,000 quick saves, else a few dozen.
"""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import AmbiguousRef, BadInput, NoSuchRef, RetentionPolicy, Store
from ckstore.fs import files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.notify import Watch
from ckstore.ops.refs import follow as module
from tests.support.requirements import CRASH_FULL

WAIT_S = 120.0
QUICK = 1000 if CRASH_FULL else 40
KEPT = 20 if CRASH_FULL else 10
"""So many the retention keeps: who follows is at most so far behind, or has lost some."""


def save(store: Store, step: int, run: str = "gpt") -> None:
    store.save({"w": np.full(10, step)}, step, run)


@pytest.fixture(params=["inotify", "looking"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the follower is told."""
    if request.param == "looking":
        monkeypatch.setattr(Watch, "of", classmethod(lambda *_: None))
        monkeypatch.setattr(module, "_LOOK_S", 0.01)
    return str(request.param)


def saving(store: Store, steps: range) -> threading.Thread:
    def work() -> None:
        for step in steps:
            save(store, step)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_many_quick_saves_are_seen_in_order(kind: str, store: Store) -> None:
    saver = saving(Store.open(store.path), range(QUICK))
    seen = []
    with store.follow("gpt", timeout_s=WAIT_S) as follower:  # the run is not there yet, or just
        for info in follower:
            seen.append(info.step)
            if info.step == QUICK - 1:
                break
    saver.join()
    assert seen == list(range(QUICK))


def test_each_is_seen_in_order_across_retention_and_stops(kind: str, store: Store) -> None:
    """Every other time the follower stops while as many are saved as are kept; it is never further behind."""
    store.config.retention = RetentionPolicy(keep_last=KEPT)
    saver = Store.open(store.path)
    seen: list[int] = []
    with store.follow("gpt", timeout_s=WAIT_S) as follower:
        for first in range(0, QUICK, 2 * KEPT):
            saving(saver, range(first, first + KEPT)).join()
            seen += [next(follower).step for _ in range(KEPT)]
            beside = saving(saver, range(first + KEPT, first + 2 * KEPT))
            seen += [next(follower).step for _ in range(KEPT)]
            beside.join()

    assert seen == list(range(QUICK))
    assert [info.step for info in store.checkpoints("gpt")] == list(range(QUICK - KEPT, QUICK))


def test_of_what_is_dropped_before_it_looks_nothing_else_is_lost(kind: str, store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=3)
    saver = saving(Store.open(store.path), range(QUICK // 2))
    seen = []
    with store.follow("gpt", timeout_s=WAIT_S) as follower:
        for info in follower:
            seen.append(info.step)
            if info.step == QUICK // 2 - 1:
                break
    saver.join()
    assert seen == sorted(set(seen))


def test_a_follower_that_stopped_for_a_while_goes_on_where_it_was(kind: str, store: Store) -> None:
    save(store, 0)
    with store.follow("gpt", timeout_s=0) as follower:
        assert next(follower).step == 0
        for step in range(1, 25):
            save(store, step)
        store.config.retention = RetentionPolicy(keep_last=10)
        save(store, 25)
        assert [info.step for info in follower] == list(range(16, 26))

    last = store.info("gpt@25")
    save(store, 26)
    save(store, 27)
    store.delete(last)
    assert [info.step for info in store.follow("gpt", after=last, timeout_s=0)] == [26, 27]
    assert [info.step for info in store.follow("gpt", after="latest", timeout_s=0)] == []
    assert [info.step for info in store.follow("gpt", after=26, timeout_s=0)] == [27]
    save(store, 26, run="other")
    assert [info.step for info in store.follow("gpt", after="26", timeout_s=0)] == [27]


def test_a_step_that_was_replaced_or_saved_again_is_given_again(kind: str, store: Store) -> None:
    save(store, 1)
    save(store, 2)
    with store.follow(timeout_s=0) as follower:
        first = [next(follower), next(follower)]
        replaced = store.save({"w": np.zeros(3)}, 1, "gpt", if_exists="replace")
        store.delete("gpt@2")
        store.save({"w": np.full(10, 2)}, 2, "gpt")
        again = list(follower)
    assert [info.step for info in first] == [1, 2]
    assert [info.step for info in again] == [1, 2]
    assert again[0] == replaced


def test_what_it_gives_was_made_durable_by_itself(kind: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    synced: list[str] = []
    sync = files.sync_directory

    def note(path: StorePath) -> None:
        synced.append(path.name)
        sync(path)

    monkeypatch.setattr(files, "sync_directory", note)
    follower = store.follow("gpt", timeout_s=0)
    assert synced == []
    assert next(follower).step == 1
    assert synced == ["gpt", "checkpoints", "staging"]
    follower.close()


def test_close_ends_a_thread_that_waits(kind: str, store: Store) -> None:
    follower = store.follow("gpt")
    ended = threading.Event()

    def work() -> None:
        assert list(follower) == []
        ended.set()

    threading.Thread(target=work).start()
    follower.close()
    assert ended.wait(WAIT_S)
    assert list(follower) == []


def test_no_descriptor_is_left(store: Store) -> None:
    save(store, 1)

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    list(store.follow("gpt", timeout_s=0))
    gc.collect()  # so that garbage of earlier tests closes no descriptor during the count
    before = count()
    for _ in range(20):
        list(store.follow("gpt", timeout_s=0))
        with store.follow("gpt", timeout_s=0) as follower:
            next(follower)
        next(store.follow("gpt", timeout_s=0))
    assert count() <= before  # fewer, if a thread of an earlier test ended; each leak of 60 would be one more


def test_a_run_that_is_removed_and_made_again_is_followed(kind: str, store: Store) -> None:
    save(store, 1)
    with store.follow("gpt", timeout_s=0) as follower:
        assert next(follower).step == 1
        store.delete("gpt@1")
        (store.path / "checkpoints" / "gpt").rmdir()
        save(store, 1)
        assert [info.step for info in follower] == [1]


def test_which_run_is_followed(store: Store, tmp_path: Path) -> None:
    assert store.follow(timeout_s=0).run == "main"
    save(store, 1)
    assert store.follow(timeout_s=0).run == "gpt"
    save(store, 1, "other")
    assert Store.open(store.path, run="other").follow(timeout_s=0).run == "other"
    with pytest.raises(AmbiguousRef):
        store.follow()
    with pytest.raises(NoSuchRef):
        store.follow("gpt", after=7)
    for wrong in (-1, float("nan")):
        with pytest.raises(BadInput, match="timeout_s"):
            store.follow("gpt", timeout_s=wrong)
    with pytest.raises(BadInput, match="run"):
        store.follow("a/b")


def test_checkpoints_deleted_before_their_turn_are_not_yielded(kind: str, store: Store) -> None:
    for step in range(4):
        save(store, step)
    with store.follow("gpt", timeout_s=0) as follower:
        assert next(follower).step == 0
        for step in range(3):
            store.delete(f"gpt@{step}", now=True)
        assert next(follower).step == 3
        store.delete("gpt@3", now=True)
        assert list(follower) == []


def test_a_follower_begins_after_a_checkpoint_that_was_compacted(store: Store) -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=300_000).astype(np.float32)
    infos = []
    for step in range(3):
        value[step::7] += np.float32(0.001)
        infos.append(store.save({"w": value}, step, "gpt"))
    store.compact(keep_newest=1)
    assert [info.step for info in store.follow("gpt", after=infos[0], timeout_s=0)] == [1, 2]
    assert [info.step for info in store.follow("gpt", after=store.info("gpt@0"), timeout_s=0)] == [1, 2]
    assert [info.step for info in store.follow("gpt", after=infos[0], timeout_s=0, lacking="bleu")] == [1, 2]


def test_a_checkpoint_compacted_before_its_turn_is_yielded(kind: str, store: Store) -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=300_000).astype(np.float32)
    for step in range(3):
        value[step::7] += np.float32(0.001)
        store.save({"w": value}, step, "gpt")
    with store.follow("gpt", timeout_s=0) as follower:
        assert next(follower).step == 0
        assert [done.info.step for done in store.compact(keep_newest=1).compacted] == [1, 0]
        assert [info.step for info in follower] == [1, 2]


@pytest.mark.parametrize(
    "arguments, needed",
    [
        ({"attempts": 2}, "attempts=2 needs lacking="),
        ({"attempts": None}, "attempts=None needs lacking="),
        ({"newest_first": True}, "newest_first=True needs lacking="),
        ({"poll_s": 1.0}, "poll_s= needs remote="),
    ],
)
def test_an_argument_that_would_have_no_effect_is_refused(store: Store, arguments: dict[str, Any], needed: str) -> None:
    save(store, 1)

    with pytest.raises(BadInput, match=needed) as caught:
        store.follow("gpt", timeout_s=0, **arguments)
    assert caught.value.hint


@pytest.mark.parametrize("arguments", [{"attempts": 2}, {"newest_first": True}])
def test_a_remote_refuses_the_same_arguments(store: Store, tmp_path: Path, arguments: dict[str, Any]) -> None:
    other = Store.init(tmp_path / "other")
    save(other, 1)

    with pytest.raises(BadInput, match="needs lacking="):
        store.follow("gpt", timeout_s=0, remote=other.path, **arguments)
    assert [info.step for info in store.follow("gpt", timeout_s=0, remote=other.path, poll_s=1.0)] == [1]
