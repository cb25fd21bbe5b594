"""The demo shows what it says, leaves nothing behind, and would notice if the runs differed."""

import copy
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import BadInput
from ckstore_cli.commands.store.demo import demo
from ckstore_cli.demo import cut, main, programs, ranks, shards
from ckstore_cli.demo.cut import kill_in_a_save, published, saves_in_flight
from ckstore_cli.demo.data import Batches, Corpus, Rng, read_corpus
from ckstore_cli.demo.programs import Watch
from ckstore_cli.demo.proof import digest, digests
from ckstore_cli.demo.telling import DemoFailed

SAVER = """
import os, sys, time
store, saves = sys.argv[1], int(sys.argv[2])
for step in range(1, saves + 1):
    staged = f"{store}/staging/run@{step}.x"
    os.makedirs(f"{staged}/blobs")
    with open(f"{staged}/blobs/xxh3-00", "w") as blob:
        blob.write("data")
    time.sleep(0.2)
    os.makedirs(f"{store}/checkpoints/run", exist_ok=True)
    os.rename(staged, f"{store}/checkpoints/run/{step}")
"""


def processes_about(path: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it ended meanwhile
            continue
        if os.fsencode(path) in command:
            found.append(command.replace(b"\0", b" ").decode())
    return found


def text_of(size_bytes: int) -> Corpus:
    text = torch.from_numpy(np.random.default_rng(1).integers(0, 255, size_bytes, np.uint8))
    return Corpus(text, 1, "0" * 64)


def batches_of(corpus: Corpus, seed: int) -> Batches:
    return Batches(corpus, context=8, batch_size=3, epoch_windows=7, seed=seed)


@pytest.mark.slow
def test_the_demo_kills_a_save_resumes_and_proves_that_nothing_was_lost(tmp_path: Path) -> None:
    place = tmp_path / "place"
    done = subprocess.run(
        [sys.executable, "-m", "ckstore_cli", "demo", "--quick", "--directory", str(place)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "KILLED with kill -9 while it was being saved" in done.stdout
    assert "PROVEN" in done.stdout
    assert processes_about(place) == []
    with Store.open(place / "store") as store:
        assert store.savers() == ()
        names = [info.name for info in store.checkpoints()]
        resumed, whole = (store.info(f"{run}@24") for run in (main.RUN, main.REFERENCE_RUN))
    rotated, later = names[:5], names[5:]
    assert rotated in ([pinned, "gpt@16", "gpt@20", "gpt@24", "uninterrupted@24"] for pinned in ("gpt@8", "gpt@12"))
    assert later == ["lora@2", "lora@4", "lora@6", "lora@8", "lora@10", "files@10"]
    assert "safetensors reads 39 tensors, equal to what was saved: yes" in done.stdout
    assert "modes and SHA-256 as before: yes" in done.stdout
    assert f"pinned {names[0]} as pin-" in done.stdout
    assert "that processes have open:" in done.stdout
    assert "mapping  " in done.stdout
    assert resumed.content == whole.content
    assert whole.new_bytes < whole.logical_bytes / 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_of_ranks_goes_on_with_fewer_and_proves_that_all_is_the_same(tmp_path: Path) -> None:
    place = tmp_path / "place"
    done = subprocess.run(
        [sys.executable, "-m", "ckstore_cli", "demo", "--ranks", "2", "--quick", "--directory", str(place)],
        check=False,
        capture_output=True,
        text=True,
        timeout=840,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("  equal") == 4
    assert "PROVEN: what 2 ranks saved, 1 rank loaded" in done.stdout
    assert processes_about(place) == []
    with Store.open(place / "store") as store:
        assert [info.name for info in store.checkpoints()] == ["ranks@2", "ranks@4"]
        assert store.info("ranks@4").new_bytes < store.info("ranks@4").logical_bytes / 4  # the rest is from two ranks


def test_a_rank_that_fails_fails_the_demo_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "one-fails"
    program.write_text('#!/bin/sh\n[ "$4" = 1 ] && exit 7\nexec sleep 600\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    with pytest.raises(DemoFailed, match="rank 1 should exit with 0, it exited with 7"):
        ranks.train(tmp_path, 3, 1, ranks.QUICK)


def test_a_trainer_that_fails_fails_the_demo_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(main, "run_trainer", lambda *_: 3)
    before = set(tmp_path.iterdir())

    with pytest.raises(DemoFailed, match="exited with 3"):
        main.run_demo(None, keep=False, quick=True)
    assert set(tmp_path.iterdir()) == before


def trainer_that_is_killed(leaves: list[bool]) -> Any:
    """Stand in for `run_trainer`: each call is killed, in a save (True) or just after one."""
    step = 0

    def run(arguments: list[str], watch: Watch) -> None:
        nonlocal step
        for _ in range(step // 4, watch.after_saves):
            step += 4
            (watch.store / "checkpoints" / watch.run / str(step)).mkdir(parents=True)
        step += 4
        if leaves.pop(0):
            blobs = watch.store / "staging" / f"cut-at-{step}" / "blobs"
            blobs.mkdir(parents=True)
            (blobs / "xxh3-00").write_bytes(b"data")
        else:
            (watch.store / "checkpoints" / watch.run / str(step)).mkdir(parents=True)

    return run


def test_a_kill_that_came_too_late_is_done_again_in_a_later_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "run_trainer", trainer_that_is_killed([False, False, True]))

    cut, step = main.Demo(tmp_path, main.QUICK).train_until_cut()

    assert (cut.name, step) == ("cut-at-20", 20)
    assert capsys.readouterr().out.count("too late") == 2


def test_a_demo_that_never_cut_a_save_does_not_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "run_trainer", trainer_that_is_killed([False] * 9))

    with pytest.raises(DemoFailed, match="none could be shown cut"):
        main.Demo(tmp_path, main.QUICK).train_until_cut()


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(BadInput, match="a new or empty directory"):
        main.run_demo(tmp_path, keep=False, quick=True)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.fixture
def both_saved(tmp_path: Path) -> tuple[main.Demo, dict[str, str]]:
    """A demo whose runs have saved the same, and the digests of that."""
    demo = main.Demo(tmp_path, main.QUICK)
    state: dict[str, Any] = {name: {"w": torch.ones(4)} for name in main.PARTS}
    with Store.init(demo.store) as store:
        for run in (main.RUN, main.REFERENCE_RUN):
            store.save(state, step=main.QUICK.steps, run=run)
    return demo, digests(state)


def test_the_proof_holds_when_everything_is_the_same(
    both_saved: tuple[main.Demo, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    demo, told = both_saved

    demo.prove(told, told)

    assert "PROVEN" in capsys.readouterr().out


@pytest.mark.parametrize("part", list(main.PARTS))
def test_the_proof_fails_when_one_part_differs(
    part: str, both_saved: tuple[main.Demo, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    demo, told = both_saved
    other = told | {part: "0" * 64}

    with pytest.raises(DemoFailed):
        demo.prove(told, other)
    with pytest.raises(DemoFailed):  # the runs agree, but not with what the store gives back
        demo.prove(other, other)
    assert "PROVEN" not in capsys.readouterr().out


@pytest.mark.parametrize("after_saves", [0, 2])
def test_a_kill_in_a_save_leaves_that_save_unpublished(after_saves: int, tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path), "5"])
    deadline_s = time.monotonic() + 60

    killed = kill_in_a_save(program, tmp_path, "run", after_saves=after_saves, deadline_s=deadline_s)

    assert killed
    assert published(tmp_path, "run") == list(range(1, after_saves + 1))
    assert [save.name for save in saves_in_flight(tmp_path)] == [f"run@{after_saves + 1}.x"]
    assert [save.unfinished for save in saves_in_flight(tmp_path)] == [1]


def test_a_program_that_ends_by_itself_is_not_called_killed(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path), "1"])

    assert not kill_in_a_save(program, tmp_path, "run", after_saves=1, deadline_s=time.monotonic() + 60)
    assert published(tmp_path, "run") == [1]


def test_waiting_for_a_save_has_an_end(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with pytest.raises(TimeoutError):
            kill_in_a_save(program, tmp_path, "run", after_saves=0, deadline_s=time.monotonic())
    finally:
        program.kill()
        program.wait(30)


def test_a_trainer_that_never_saves_is_told_of_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sleeps"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(programs, "DEADLINE_S", 0.0)

    with pytest.raises(TimeoutError, match="the trainer should end within 0 s"):
        programs.run_trainer([], programs.Watch(tmp_path, "run", after_saves=0))


def test_a_saver_is_found_though_the_store_is_named_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    with Store.init(tmp_path / "store") as store:
        store.prewarm()
        deadline_s = time.monotonic() + 120
        while not store.savers():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

        assert cut._savers(tmp_path / "link" / "store") == [saver.pid for saver in store.savers()]


def test_each_rank_of_the_demo_has_a_row_of_the_batch() -> None:
    (asked,) = [option.type for option in demo.params if option.name == "ranks"]

    assert isinstance(asked, click.IntRange)
    assert asked.max is not None
    assert asked.max <= shards.BATCH_SIZE


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
ARRAYS = st.lists(st.integers(0, 255), max_size=6).map(lambda values: np.array(values, np.uint8))
STATES = st.recursive(
    PLAIN | ARRAYS | ARRAYS.map(torch.from_numpy),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 5), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.property
@given(state=STATES, key=st.text(max_size=3), values=st.lists(st.integers(0, 255), min_size=1))
def test_a_digest_is_that_of_the_value_and_changes_with_every_bit(state: object, key: str, values: list[int]) -> None:
    tensor = torch.tensor(values, dtype=torch.uint8)
    whole = [state, {key: tensor}]
    same = digest(copy.deepcopy(whole))

    assert digest(whole) == same
    assert digest([state, {key + "x": tensor}]) != same
    assert digest([state, {key: tensor.numpy()}]) != same
    assert digest([state, {key: tensor.view(torch.int8)}]) != same
    assert digest((state, {key: tensor})) != same
    tensor[len(values) // 2] ^= 1
    assert digest(whole) != same


@pytest.mark.property
@given(before=st.integers(0, 6), after=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_batches_go_on_where_their_state_was_taken(before: int, after: int, seed: int) -> None:
    corpus = text_of(200)
    batches = batches_of(corpus, seed)
    for _ in range(before):
        batches.next()
    saved = copy.deepcopy({"data": batches.state_dict(), "rng": Rng().state_dict()})
    to_come = [batches.next() for _ in range(after)]

    random.seed(0)
    other = batches_of(corpus, seed + 1)
    other.load_state_dict(saved["data"])
    Rng().load_state_dict(saved["rng"])

    assert all(torch.equal(other.next(), batch) for batch in to_come)


def test_the_state_of_another_text_is_refused() -> None:
    state = batches_of(text_of(200), 1).state_dict()
    other = Batches(read_corpus(), context=8, batch_size=3, epoch_windows=7, seed=1)

    with pytest.raises(BadInput, match="was trained on a text with SHA-256 000000000000"):
        other.load_state_dict(state)
