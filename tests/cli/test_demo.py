"""The demo shows what it says, leaves nothing behind, and would notice if the runs differed."""

import copy
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import BadInput
from ckstore_cli.demo import story
from ckstore_cli.demo.story import Demo, DemoFailed, kill_in_a_save, published, saves_in_flight
from ckstore_cli.demo.trainer import digest
from tests.saver.conftest import wait_for

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
PARTS = ("model", "optimizer", "schedule", "generator")


def quick_demo(place: Path) -> Demo:
    return Demo(place, steps=24, save_every=4, layers=2)


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


@pytest.mark.slow
@pytest.mark.whole  # as below, with each process started as a user's
def test_the_demo_that_a_user_starts_tells_the_same(tmp_path: Path) -> None:
    place = tmp_path / "place"
    done = subprocess.run(
        [sys.executable, "-m", "ckstore_cli", "demo", "--quick", "--directory", str(place)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert_told(place, done.stdout)


@pytest.mark.slow
def test_the_demo_kills_a_save_resumes_and_proves_that_nothing_was_lost(
    tmp_path: Path, warm: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    python, place = sys.executable, tmp_path / "place"
    train_until_cut = Demo.train_until_cut

    def by_a_process_of_its_own(demo: Demo) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", python)  # a fork may live for a moment after its kill -9
            return train_until_cut(demo)

    monkeypatch.setattr(Demo, "train_until_cut", by_a_process_of_its_own)
    monkeypatch.setattr(sys, "executable", str(warm / "python"))

    assert story.run_demo(place, keep=False, quick=True) == 0
    assert_told(place, capfd.readouterr().out)


def assert_told(place: Path, told: str) -> None:
    """What it told is so, and it left no process."""
    assert "KILLED with kill -9 while it was being saved" in told
    assert "PROVEN" in told
    assert processes_about(place) == []
    with Store.open(place / "store") as store:
        wait_for(lambda: store.savers() == (), "the savers to end")  # as they do when they see that their trainer ended
        names = [info.name for info in store.checkpoints()]
        resumed, whole = (store.info(f"{run}@24") for run in (story.RUN, story.REFERENCE_RUN))
        tuned = store.info(f"{story.TUNED_RUN}@24")
    assert names[1:5] == ["gpt@16", "gpt@20", "gpt@24", "uninterrupted@24"]
    assert names[5:] == [f"lora@{step}" for step in range(4, 25, 4)]
    assert f"pinned {names[0]} as pin-" in told
    assert "mapping  " in told
    assert resumed.content == whole.content
    assert whole.new_bytes < whole.logical_bytes / 20
    assert tuned.new_bytes < tuned.logical_bytes / 20
    assert (place / "exported" / "model.safetensors").exists()


def test_a_trainer_that_fails_fails_the_demo_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(program))
    before = set(tmp_path.iterdir())

    with pytest.raises(DemoFailed, match="exited with 3"):
        story.run_demo(None, keep=False, quick=True)
    assert set(tmp_path.iterdir()) == before


def test_a_demo_that_never_cut_a_save_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(story, "kill_in_a_save", lambda program, *_, **__: program.wait() is None)
    monkeypatch.setattr(sys, "executable", "true")
    (tmp_path / "store/checkpoints/gpt/24").mkdir(parents=True)

    with pytest.raises(DemoFailed, match="none was interrupted"):
        quick_demo(tmp_path).train_until_cut()
    assert capsys.readouterr().out.count("too late") == 4


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(BadInput, match="a new or empty directory"):
        story.run_demo(tmp_path, keep=False, quick=True)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.fixture
def both_saved(tmp_path: Path) -> tuple[Demo, dict[str, str]]:
    """A demo whose runs have saved the same, and the digests of that."""
    demo = quick_demo(tmp_path)
    state: dict[str, Any] = {name: {"w": torch.ones(4)} for name in PARTS}
    with Store.init(demo.store) as store:
        for run in (story.RUN, story.REFERENCE_RUN):
            store.save(state, step=demo.steps, run=run)
    return demo, {name: digest(part) for name, part in state.items()}


def test_the_proof_holds_when_everything_is_the_same(
    both_saved: tuple[Demo, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    demo, told = both_saved

    demo.prove(told, told)

    assert "PROVEN" in capsys.readouterr().out


@pytest.mark.parametrize("part", PARTS)
def test_the_proof_fails_when_one_part_differs(
    part: str, both_saved: tuple[Demo, dict[str, str]], capsys: pytest.CaptureFixture[str]
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

    assert kill_in_a_save(program, tmp_path, "run", after_saves=after_saves)
    assert published(tmp_path, "run") == list(range(1, after_saves + 1))
    assert saves_in_flight(tmp_path) == [f"run@{after_saves + 1}.x"]


def test_a_program_that_ends_by_itself_is_not_called_killed(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path), "1"])

    assert not kill_in_a_save(program, tmp_path, "run", after_saves=1)
    assert published(tmp_path, "run") == [1]


def test_waiting_for_a_save_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "DEADLINE_S", 0.0)
    program = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(TimeoutError, match="should be saved 0 times within 0 s"):
            kill_in_a_save(program, tmp_path, "run", after_saves=0)
    finally:
        program.kill()
        program.wait(30)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
TENSORS = st.lists(st.integers(0, 255), max_size=6).map(lambda values: torch.from_numpy(np.array(values, np.uint8)))
STATES = st.recursive(
    PLAIN | TENSORS,
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
    assert digest([state, {key: tensor.view(torch.int8)}]) != same
    assert digest((state, {key: tensor})) != same
    tensor[len(values) // 2] ^= 1
    assert digest(whole) != same
