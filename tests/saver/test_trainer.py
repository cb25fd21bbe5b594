"""The trainer may end at any moment: what the saver has is saved, and nothing keeps the trainer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.saver.test_states import frozen
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import CRASH_FULL

ROOT = Path(__file__).resolve().parents[2]
EXIT_S = 5.0
TRAINER = """
import os, signal, sys, time
import numpy as np
from ckstore import Store

path, how = sys.argv[1:3]
if how in ("give up", "struck"):
    from ckstore.saver.client import process
    process.ENTRY = "tests.saver.double"
store = Store(path)
pending = store.save_async({"w": np.full(400_000, 7, np.float32), "n": 7}, step=7)
pending.wait_staged()
children = []
if how == "with a child":
    children.append(os.fork())
    if not children[0]:
        sys.stdin.read()
        os._exit(0)
print(store.background._client().pid(), flush=True)
if how == "give up":
    sys.stdin.readline()
    sys.exit(0 if not store.background.flush(0.01) else 1)
if how.startswith("go"):
    sys.stdin.readline()
    print("ends", flush=True)
    if how == "go, return":
        sys.exit(0)
    if how == "go, with":
        store.close()
        sys.exit(0)
    if how == "go, raise":
        raise RuntimeError("something else")
time.sleep(600)
"""


@contextmanager
def trainer(path: Path, how: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A trainer that has handed over a save; and the process of its saver."""
    running = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(path), how],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert running.stdout is not None
    assert running.stdin is not None
    try:
        yield running, int(running.stdout.readline())
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        running.stdin.close()


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")


@pytest.mark.crash
def test_a_save_that_was_given_up_does_not_appear_after_the_end_of_its_trainer(tmp_path: Path, strike: Any) -> None:
    folder = strike("hashing", "wait", 1)
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    with trainer(store.path, "give up") as (running, pid):
        wait_for((folder / "struck-0").exists, "it is hashing")
        running.communicate("go\n")
        assert running.returncode == 0
        (folder / "go-0").touch()
        wait_for(lambda: is_gone(pid), "the saver has ended")

    assert store.checkpoints() == []
    assert os.listdir(store.path / "staging") == []


@pytest.mark.crash
@pytest.mark.parametrize("how", ["", "with a child"])
def test_a_trainer_that_is_killed_right_after_it_has_saved(tmp_path: Path, how: str) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    with trainer(store.path, how or "alone") as (running, pid):
        running.kill()
        running.wait()
        wait_for(lambda: is_gone(pid), "the saver has ended")

    loaded = store.load(7)
    assert (loaded["w"] == 7).all()
    assert loaded["n"] == 7
    assert os.listdir(store.path / "staging") == []


@pytest.mark.crash
@pytest.mark.parametrize("how", ["go, return", "go, with", "go, raise", "terminate"] if CRASH_FULL else ["go, with"])
def test_a_trainer_ends_although_its_saver_is_stopped(tmp_path: Path, how: str) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    with trainer(store.path, how) as (running, pid):
        os.kill(pid, signal.SIGSTOP)
        try:
            _ends_soon(running, how)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: is_gone(pid), "the saver has ended")
    assert store.load(7)["n"] == 7


@pytest.mark.crash
@pytest.mark.root
@pytest.mark.parametrize("how", ["go, return", "go, with", "go, raise", "terminate"] if CRASH_FULL else ["terminate"])
def test_a_trainer_ends_although_the_storage_is_frozen(tmp_path: Path, how: str) -> None:
    with loop_filesystem("ext4", 128, tmp_path) as mountpoint:
        store = Store.init(mountpoint / "store", chunk_bytes=2**20)
        with trainer(store.path, how) as (running, pid):
            with frozen(mountpoint):
                _ends_soon(running, how)
            wait_for(lambda: is_gone(pid), "the saver has ended")
        assert store.load(7)["n"] == 7


def _ends_soon(running: subprocess.Popen[str], how: str) -> None:
    """It ends; within `EXIT_S` in the long form, which has the machine for itself."""
    assert running.stdin is not None
    assert running.stdout is not None
    begun = time.monotonic()
    if how == "terminate":
        running.terminate()
    else:
        running.stdin.write("go\n")
        running.stdin.flush()
        assert running.stdout.readline() == "ends\n"
    running.wait(DEADLINE_S)
    if CRASH_FULL:
        assert time.monotonic() - begun < EXIT_S
