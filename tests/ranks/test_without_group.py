"""Ranks save together without a process group: real processes, late, dead, duplicate and disagreeing ones."""

from __future__ import annotations

import glob
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ckstore import BadInput, DamagedBlob, NoSuchRef, RankMismatch, Ranks, StepExists, Store
from ckstore.ranks.file_rendezvous import FileRendezvous
from ckstore_cli.app import app
from tests.ranks.racers import state_of
from tests.ranks.racing import Racers
from tests.support.requirements import representatives
from tests.support.stores import check_store

LONG = os.environ.get("CKSTORE_CRASH") == "full"
ROUNDS = 200 if LONG else 6
RANKS = 8 if LONG else 3
PATIENT_S = 120


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    made = Racers(RANKS)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def together(racers: Racers, store: Store, step: int, *, attempt: str, count: int = RANKS, **given: Any) -> list[Any]:
    for rank in range(count):
        common = {"store": str(store.path), "step": step, "rank": rank, "world_size": count, "attempt": attempt}
        racers.say(rank, **{"timeout": PATIENT_S, **common, **given})
    return [racers.answer(rank) for rank in range(count)]


def wait_for_part(store: Store, rank: int) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not glob.glob(f"{store.path}/staging/*/part-{rank}.json"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def left_over(store: Store) -> list[str]:
    """What is in staging once an opener has swept it."""
    opened = Store.open(store.path)
    opened.gc()
    return sorted(path.name for path in (store.path / "staging").iterdir())


def check_states(store: Store, step: int, count: int = RANKS) -> None:
    loaded = store.load(step)
    assert sorted(loaded) == list(range(count))
    for rank in range(count):
        wanted: Any = state_of(rank, step)
        for state in (loaded[rank], store.load(step, rank=rank)):
            assert np.array_equal(state["w"], wanted["w"])
            assert state["rank"] == rank
            loader, given = state["loader"], wanted["loader"]
            assert loader["recent"].maxlen == 4
            assert [part.tolist() for part in loader["recent"]] == [part.tolist() for part in given["recent"]]
            assert loader["by_shard"].default_factory is list
            assert loader["by_shard"][rank, None][0].tolist() == given["by_shard"][rank, None][0].tolist()
            assert loader["order"] == given["order"]


def test_ranks_save_one_checkpoint_that_gives_each_its_state(racers: Racers, store: Store) -> None:
    answers = together(racers, store, 10, attempt="a")

    (info,) = store.checkpoints()
    assert answers == [{"id": info.id}] * RANKS
    check_states(store, 10)
    assert store.load(10, rank=1, select="rank") == {"rank": 1}
    with pytest.raises(NoSuchRef, match="rank"):
        store.load(10, rank=RANKS)
    assert store.verify().ok
    assert left_over(store) == []


def test_what_all_ranks_have_is_stored_once(racers: Racers, store: Store) -> None:
    together(racers, store, 1, attempt="a")
    first = store.info(1)
    together(racers, store, 2, attempt="a")

    assert first.new_bytes < first.logical_bytes / 2
    assert store.info(2).new_bytes < first.new_bytes


def test_a_rank_that_does_not_come_is_named_and_nothing_is_visible(racers: Racers, store: Store) -> None:
    for rank in range(RANKS - 1):
        given = {"store": str(store.path), "step": 3, "rank": rank, "world_size": RANKS, "attempt": "a"}
        racers.say(rank, timeout=2.0, **given)
    answers = [racers.answer(rank) for rank in range(RANKS - 1)]

    assert {answer["error"] for answer in answers} == {"MissingRanks"}
    assert f"rank {RANKS - 1} did not arrive" in answers[0]["message"]
    assert store.checkpoints() == []
    assert left_over(store) == []
    together(racers, store, 3, attempt="a")
    check_states(store, 3)


def test_a_rank_that_cannot_store_its_state_fails_all_at_once(racers: Racers, store: Store) -> None:
    for rank in range(RANKS):
        given = {"store": str(store.path), "step": 4, "rank": rank, "world_size": RANKS, "attempt": "a"}
        racers.say(rank, timeout=PATIENT_S, bad=rank == 1, **given)
    answers = [racers.answer(rank) for rank in range(RANKS)]

    assert [answer["error"] for answer in answers] == ["RankFailed", "CannotStore", *["RankFailed"] * (RANKS - 2)]
    assert "rank 1: bad" in answers[0]["message"] or "bad" in answers[0]["message"]
    assert store.checkpoints() == []
    assert left_over(store) == []


def test_a_rank_that_died_with_its_part_staged_is_named(racers: Racers, store: Store) -> None:
    common = {"store": str(store.path), "step": 6, "world_size": 3, "attempt": "a", "timeout": PATIENT_S}
    for rank in (0, 1):
        racers.say(rank, rank=rank, **common)
        wait_for_part(store, rank)
    racers.kill(1)
    killed = racers.processes[1].pid
    Store.open(store.path).gc()  # takes its part away
    racers.say(2, rank=2, **common)
    answers = [racers.answer(0), racers.answer(2)]

    assert {answer["error"] for answer in answers} == {"RankFailed"}
    assert all(f"rank 1 ({os.uname().nodename}, process {killed})" in answer["message"] for answer in answers)
    assert store.checkpoints() == []
    assert left_over(store) == []


def test_two_processes_with_one_rank_are_told_and_the_first_goes_on(racers: Racers, store: Store) -> None:
    common = {"store": str(store.path), "step": 5, "world_size": 2, "attempt": "a"}
    racers.say(0, rank=0, timeout=PATIENT_S, **common)
    wait_for_part(store, 0)
    racers.say(1, rank=0, timeout=PATIENT_S, **common)
    duplicate = racers.answer(1)
    racers.say(1, rank=1, timeout=PATIENT_S, **common)

    assert duplicate["error"] == "RankMismatch"
    assert str(racers.processes[0].pid) in duplicate["message"]
    assert racers.answer(1) == racers.answer(0) == {"id": store.info(5).id}
    racers.say(0, rank=0, timeout=PATIENT_S, **common)
    assert racers.answer(0)["error"] == "RankMismatch"


def test_ranks_that_mean_different_steps_are_told_who_means_what(racers: Racers, store: Store) -> None:
    common = {"store": str(store.path), "world_size": 2, "attempt": "a"}
    racers.say(0, rank=0, step=6, timeout=PATIENT_S, **common)
    wait_for_part(store, 0)
    racers.say(1, rank=1, step=7, timeout=0.1, **common)
    answer = racers.answer(1)
    racers.kill(0)

    assert answer["error"] == "RankMismatch"
    assert (
        f"rank 0 ({os.uname().nodename}, process {racers.processes[0].pid}) saves main@6 with 2 ranks"
        in answer["message"]
    )
    assert store.checkpoints() == []
    assert left_over(store) == []


def test_a_try_never_meets_what_another_left(racers: Racers, store: Store) -> None:
    common = {"store": str(store.path), "step": 8, "world_size": 2}
    racers.say(0, rank=0, attempt="first", timeout=2.0, **common)
    racers.say(1, rank=1, attempt="second", timeout=2.0, **common)

    assert [racers.answer(i)["error"] for i in (0, 1)] == ["MissingRanks", "MissingRanks"]
    assert store.checkpoints() == []


def test_directories_of_files_make_one_checkpoint(racers: Racers, store: Store, tmp_path: Path) -> None:
    for rank in range(RANKS):
        folder = tmp_path / f"offloaded-{rank}"
        (folder / "tensors").mkdir(parents=True)
        (folder / "tensors" / f"rank{rank}.bin").write_bytes(bytes([rank]) * 5000)
        (folder / "config.json").write_text("{}")
        given = {"store": str(store.path), "step": 9, "rank": rank, "world_size": RANKS, "attempt": "a"}
        racers.say(rank, timeout=PATIENT_S, files=str(folder), **given)
    answers = [racers.answer(rank) for rank in range(RANKS)]

    assert answers == [{"id": store.info(9).id}] * RANKS
    store.checkout(9, tmp_path / "out")
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found == ["config.json", *(f"tensors/rank{rank}.bin" for rank in range(RANKS))]
    assert (tmp_path / "out" / "tensors" / "rank1.bin").read_bytes() == b"\1" * 5000
    with pytest.raises(BadInput):
        store.load(9, rank=0)


def test_the_peers_ranks_race_to_copy_their_files_into_one_directory(tmp_path: Path) -> None:
    """What the test before is about: this is all that DeepSpeed does with offloaded tensors, on every rank."""
    errors: list[BaseException] = []
    together = threading.Barrier(RANKS)
    for rank in range(RANKS):
        offload(tmp_path / "swap", rank, 1)

    def save() -> None:
        together.wait(PATIENT_S)
        try:
            shutil.copytree(tmp_path / "swap", tmp_path / "checkpoint" / "offloaded_tensors", dirs_exist_ok=False)
        except FileExistsError as error:
            errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(errors) == RANKS - 1


def test_files_that_differ_under_one_name_are_refused(racers: Racers, store: Store, tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / f"offloaded-{rank}"
        folder.mkdir()
        (folder / "config.json").write_text(str(rank))
        given = {"store": str(store.path), "step": 9, "rank": rank, "world_size": 2, "attempt": "a"}
        racers.say(rank, timeout=PATIENT_S, files=str(folder), **given)
    answers = [racers.answer(rank) for rank in range(2)]

    assert {answer["error"] for answer in answers} == {"RankMismatch"}
    assert "config.json" in answers[0]["message"]
    assert store.checkpoints() == []


def test_a_rank_with_a_state_and_one_with_files_are_told_and_neither_is_lost_in_silence(
    racers: Racers, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    common = {"store": str(store.path), "step": 9, "world_size": 2, "attempt": "a", "timeout": PATIENT_S}
    racers.say(0, rank=0, **common)
    racers.say(1, rank=1, files=str(tmp_path / "config.json"), **common)
    answers = [racers.answer(rank) for rank in range(2)]

    assert {answer.get("error") for answer in answers} == {"RankMismatch"}
    assert "rank 0" in answers[0]["message"]
    assert store.checkpoints() == []


def test_a_published_save_does_not_fail_by_a_damaged_outcome(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    say_outcome = FileRendezvous.say_outcome

    def say_and_damage(meeting: FileRendezvous, outcome: Any) -> None:
        say_outcome(meeting, outcome)
        monkeypatch.setattr(FileRendezvous, "outcome", unreadable)

    def unreadable(_: FileRendezvous) -> None:
        raise DamagedBlob("outcome.json cannot be read")

    monkeypatch.setattr(FileRendezvous, "say_outcome", say_and_damage)
    info = store.save({"w": np.arange(3)}, step=1, tags=["best"], ranks=Ranks(0, 1, "a", timeout_s=60.0))

    assert store.info("best").id == info.id
    store.gc()
    check_store(store.path)


def test_arguments_that_make_no_rank_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, world_size in ((2, 2), (0, None), (None, 2), (0, 0)):
        with pytest.raises(BadInput):
            store.save({}, 1, ranks=Ranks(rank, world_size, "a"))  # type: ignore[arg-type]
    for wrong_timeout in (0, -1, True):
        with pytest.raises(BadInput, match="timeout"):
            store.save({}, 1, ranks=Ranks(0, 1, "a", timeout_s=wrong_timeout))
    with pytest.raises(BadInput, match="step"):
        store.save({}, ranks=Ranks(0, 1, "a"))
    with pytest.raises(BadInput, match="name for this attempt"):
        store.save({}, 1, ranks=Ranks(0, 1))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert store.save({"a": 1}, 1, ranks=Ranks(0, 1)).step == 1
    with pytest.raises(RankMismatch, match="already"):
        store.save({"a": 1}, 1, ranks=Ranks(0, 1))


def test_a_rank_that_saves_on_its_own_what_another_saved_is_told_what_to_do(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save({"rank": 0}, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")

    with pytest.raises(StepExists) as caught:
        store.save({"rank": 1}, 1)
    assert "rank 1 of 4" in caught.value.hint
    assert "ranks=Ranks(" in caught.value.hint


def test_the_command_commits_as_a_rank(store: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.bin").write_bytes(b"a")
    options = ["--step", "3", "--rank", "0", "--world-size", "1", "--attempt", "a", "--store", str(store.path)]
    done = CliRunner().invoke(app, ["commit", str(tmp_path / "out"), *options])

    assert done.exit_code == 0, done.output
    assert store.info(3).name == "main@3"


def offload(folder: Path, rank: int, step: int) -> str:
    """Write what a rank has offloaded at a step; return where."""
    (folder / f"rank{rank}").mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}" / "moments.bin").write_bytes(bytes([rank, step % 256]) * 3000)
    (folder / "config.json").write_text(f'{{"step": {step}}}')
    return str(folder)


def check_files(store: Store, step: int, out: Path) -> None:
    store.checkout(step, out)
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    wanted = {f"rank{rank}/moments.bin": bytes([rank, step % 256]) * 3000 for rank in range(RANKS)}
    assert found == {**wanted, "config.json": f'{{"step": {step}}}'.encode()}


@pytest.mark.crash
@pytest.mark.parametrize("of_files", representatives([False, True], True), ids=["states", "files"])
def test_rounds_with_a_late_a_dead_or_a_duplicate_rank(
    racers: Racers, store: Store, tmp_path: Path, of_files: bool
) -> None:
    """Each step is complete, or absent with the missing rank named; no round trips over what an earlier one left."""
    seed = int(os.environ.get("CKSTORE_CRASH_SEED", "27"))
    draw = random.Random(seed)
    for step in range(100, 100 + ROUNDS):
        what = draw.choice(["all", "late", "dead", "duplicate"])
        victim = draw.randrange(RANKS)
        common = {"store": str(store.path), "step": step, "world_size": RANKS, "attempt": f"round-{step}"}
        timeout_s = 8.0 if what == "dead" else PATIENT_S
        others = [rank for rank in range(RANKS) if rank != victim]
        given: list[dict[str, Any]] = [{} for _ in range(RANKS)]
        if of_files:
            given = [{"files": offload(tmp_path / f"offloaded-{rank}", rank, step)} for rank in range(RANKS)]
        for rank in others if what == "late" else range(RANKS):
            racers.say(rank, rank=rank, timeout=timeout_s, **common, **given[rank])
        if what == "late":
            time.sleep(draw.random() / 10)
            racers.say(victim, rank=victim, timeout=timeout_s, **common, **given[victim])
        if what == "dead":
            time.sleep(draw.random() / 20)
            racers.kill(victim)
        answers = {rank: racers.answer(rank) for rank in range(RANKS)}
        if what == "duplicate":
            racers.say(victim, rank=victim, timeout=timeout_s, **common, **given[victim])
            assert racers.answer(victim)["error"] == "RankMismatch"
        told = [answers[rank] for rank in others]
        there = step in {info.step for info in store.checkpoints()}
        if there:
            if of_files:
                check_files(store, step, tmp_path / f"out-{step}")
            else:
                check_states(store, step)
            assert all("id" in answer for answer in told), (seed, step, what, told)
        else:
            assert what == "dead", (seed, step, what, told)
            assert all(answer["error"] in ("MissingRanks", "RankFailed") for answer in told), (seed, step, told)
            assert any(f"rank {victim}" in answer["message"] for answer in told), (seed, step, told)
    assert store.verify().ok
    assert left_over(store) == []
