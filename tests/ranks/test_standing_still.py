"""Ranks that stand still, and disks that do: each wait ends at its deadline, and all ranks say the same of a save."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import RankFailed, Ranks, Store
from ckstore.ops.free import reclaim
from ckstore.ranks import work
from tests.ranks.racing import Racers
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import require_program, require_root

PATIENT_S = 120.0
SHORT_S = 3.0


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    made = Racers(2)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def given(store: Store, rank: int, *, attempt: str = "a", timeout: float = PATIENT_S, **more: Any) -> dict[str, Any]:
    common = {"store": str(store.path), "step": 5, "world_size": 2, "grace_s": SHORT_S, "warnings": True}
    return {**common, "rank": rank, "attempt": attempt, "timeout": timeout, **more}


def wait_until_stopped(racers: Racers, number: int) -> None:
    stat = Path(f"/proc/{racers.processes[number].pid}/stat")
    deadline = time.monotonic() + PATIENT_S
    while stat.read_bytes().rpartition(b")")[2].split()[0] != b"T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def go_on(racers: Racers, number: int) -> None:
    os.kill(racers.processes[number].pid, signal.SIGCONT)


def left_over(store: Store) -> list[str]:
    opened = Store.open(store.path)
    opened.gc()
    return sorted(path.name for path in (store.path / "staging").iterdir())


def save_both(racers: Racers, store: Store, attempt: str, **more: Any) -> list[Any]:
    for rank in (0, 1):
        racers.say(rank, **given(store, rank, attempt=attempt, **more))
    return [racers.answer(rank) for rank in (0, 1)]


@pytest.mark.parametrize("moment", ["joining", "publishing"])
def test_a_rank_that_is_stopped_before_the_rename_is_named_and_cannot_publish_later(
    racers: Racers, store: Store, moment: str
) -> None:
    racers.say(0, **given(store, 0, timeout=SHORT_S))
    wait_for_part(store, 0)
    racers.say(1, **given(store, 1, timeout=PATIENT_S, stop_at=moment))
    wait_until_stopped(racers, 1)
    answer = racers.answer(0)
    there = store.checkpoints()
    go_on(racers, 1)
    late = racers.answer(1)

    stopped = f"rank 1 ({os.uname().nodename}, process {racers.processes[1].pid}) is stopped (SIGSTOP, or Ctrl-Z)"
    assert answer["error"] == late["error"] == "RankFailed"
    assert stopped in answer["message"]
    assert "main@5 was not published" in answer["message"]
    assert there == store.checkpoints() == []
    ids = {info["id"] for info in save_both(racers, store, "b")}
    assert ids == {info.id for info in store.checkpoints()}
    assert left_over(store) == []


def test_a_rank_that_is_stopped_after_the_rename_has_published_for_all(racers: Racers, store: Store) -> None:
    racers.say(0, **given(store, 0, timeout=SHORT_S))
    wait_for_part(store, 0)
    racers.say(1, **given(store, 1, stop_at="renamed"))
    wait_until_stopped(racers, 1)
    answer = racers.answer(0)
    go_on(racers, 1)

    (info,) = store.checkpoints()
    assert answer["id"] == racers.answer(1)["id"] == info.id
    assert left_over(store) == []


def test_a_rank_that_stood_still_returns_what_its_own_try_published(racers: Racers, store: Store) -> None:
    racers.say(1, **given(store, 1, stop_at="staged"))
    wait_until_stopped(racers, 1)
    racers.say(0, **given(store, 0))
    first = racers.answer(0)
    store.save({"other": np.arange(9)}, 5, if_exists="replace", parent=first["id"])
    go_on(racers, 1)
    late = racers.answer(1)

    (now,) = store.checkpoints()
    assert late["id"] == first["id"] != now.id
    assert any("was replaced since" in warning for warning in late["warnings"])
    assert left_over(store) == []


def test_a_late_rank_does_not_put_an_older_try_in_the_place_of_a_newer_one(racers: Racers, store: Store) -> None:
    """One rank stands still, and the other dies after its rename; then another try replaces the step."""
    options = {"if_exists": "replace"}
    racers.say(0, **given(store, 0, stop_at="staged", options=options))
    wait_until_stopped(racers, 0)
    racers.say(1, **given(store, 1, stop_at="renamed", options=options))
    wait_until_stopped(racers, 1)
    older = store.info(5)
    named = f"rank 1 ({os.uname().nodename}, process {racers.processes[1].pid})"
    racers.kill(1)
    newer = store.save({"other": np.arange(9)}, 5, if_exists="replace", parent=older)
    go_on(racers, 0)
    late = racers.answer(0)

    assert store.info(5).id == newer.id != older.id
    assert late["error"] == "RankFailed"
    assert f"main@5 does not exist: {named} stopped while it published" in late["message"]
    assert left_over(store) == []


def test_a_rank_that_is_killed_before_its_rename_is_replaced_by_another(racers: Racers, store: Store) -> None:
    racers.say(0, **given(store, 0, stop_at="staged"))
    wait_until_stopped(racers, 0)
    racers.say(1, **given(store, 1, stop_at="publishing"))
    wait_until_stopped(racers, 1)
    racers.kill(1)
    go_on(racers, 0)

    assert racers.answer(0)["id"] == store.info(5).id
    assert sorted(store.load(5)) == [0, 1]
    assert left_over(store) == []


def wait_for_part(store: Store, rank: int) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not list(store.path.glob(f"staging/*/part-{rank}.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "wrong",
    [{"tags": ["a b/c"]}, {"metrics": {"loss": "low"}}, {"if_exists": "maybe"}],
    ids=lambda one: next(iter(one)),
)
def test_an_argument_that_is_wrong_at_one_rank_fails_all_at_once(
    racers: Racers, store: Store, wrong: dict[str, Any]
) -> None:
    racers.say(0, **given(store, 0))
    racers.say(1, **given(store, 1, options=wrong))
    others, mine = racers.answer(0), racers.answer(1)

    assert others["error"] == "RankFailed"
    assert mine["error"] == "BadInput"
    assert f"rank 1: {mine['message']}" in others["message"]
    save_both(racers, store, "a")
    assert left_over(store) == []


def test_a_rank_whose_disk_hangs_when_all_is_decided_says_what_was_decided(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, real = threading.Event(), reclaim.discard

    def discard(*arguments: Any) -> None:
        hangs.wait(PATIENT_S)
        real(*arguments)

    monkeypatch.setattr(work, "_FOLLOWS_S", 0.5)
    monkeypatch.setattr(reclaim, "discard", discard)
    infos: dict[int, Any] = {}

    def save(rank: int) -> None:
        opened = Store.open(store.path)
        infos[rank] = opened.save({"r": rank}, 5, ranks=Ranks(rank, 3, "a", timeout_s=SHORT_S))

    begun = time.monotonic()
    threads = [threading.Thread(target=save, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waited_s = time.monotonic() - begun
    hangs.set()
    wait_until_no_rank_works()

    (there,) = store.checkpoints()
    assert {rank: info.id for rank, info in infos.items()} == dict.fromkeys(range(3), there.id)
    for rank, info in infos.items():
        assert any(f"the disk of rank {rank}" in warning and "slow" in warning for warning in info.warnings)
    assert waited_s < PATIENT_S / 2
    assert left_over(store) == []


def wait_until_no_rank_works() -> None:
    deadline = time.monotonic() + PATIENT_S
    while any(thread.name.startswith("ckstore rank") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def frozen(mountpoint: Path) -> Iterator[None]:
    """Let no change of a filesystem be made meanwhile."""
    program = require_program("fsfreeze")
    subprocess.run([program, "--freeze", mountpoint], check=True, timeout=PATIENT_S)
    try:
        yield
    finally:
        subprocess.run([program, "--unfreeze", mountpoint], check=True, timeout=PATIENT_S)


@pytest.mark.parametrize("when", ["before", "staged"])
def test_on_a_disk_that_is_frozen_each_wait_ends_at_its_deadline(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is answered while calls of the system hang; when the disk is back what they left is given back."""
    require_root()
    monkeypatch.setattr(work, "_QUIET_S", 1.0)
    with loop_filesystem("ext4", 64, tmp_path) as mountpoint:
        store = Store.init(mountpoint / "store")
        caught: list[BaseException] = []

        def save(rank: int) -> None:
            try:
                store.save({"r": rank}, 5, ranks=Ranks(rank, 2, "a", timeout_s=SHORT_S))
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=save, args=(0,))
        if when == "staged":
            thread.start()
            wait_for_part(store, 0)
        with frozen(mountpoint):
            begun = time.monotonic()
            if when == "before":
                thread.start()
            thread.join(PATIENT_S)
            waited_s = time.monotonic() - begun
            assert not thread.is_alive()
        wait_until_no_rank_works()

        (error,) = caught
        assert isinstance(error, RankFailed) or when == "staged"
        assert "the disk of the store has not responded" in str(error)
        assert waited_s < PATIENT_S / 2
        assert store.checkpoints() == []
        infos: list[Any] = []

        def again(rank: int) -> None:
            infos.append(store.save({"r": rank}, 5, ranks=Ranks(rank, 2, "b", timeout_s=PATIENT_S)))

        threads = [threading.Thread(target=again, args=(rank,)) for rank in (0, 1)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert {info.id for info in infos} == {store.info(5).id}
        assert left_over(store) == []
