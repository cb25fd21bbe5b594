"""The memory of a snapshot is that of the trainer: a saver gives it back with each save."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import SaveAbandoned, SaveFailed
from ckstore.saver.client import process as module
from ckstore.saver.client import snapshot
from ckstore.saver.client.process import SaverProcess
from ckstore.saver.client.snapshot import places_of
from ckstore.tensors.capture import capture
from tests.saver.conftest import DEADLINE_S, wait_for


def test_a_saver_keeps_no_snapshot(store: Store) -> None:
    for n in range(5):  # each is larger, so each has a snapshot of its own
        state = {"large": np.full(700_000 * (n + 1), n, np.float32), "small": [np.full(5, n)], "long": "x" * 5000}
        store.save_async(state).result(DEADLINE_S)

    maps = Path(f"/proc/{store._client().pid()}/maps")
    wait_for(lambda: "ckstore-snapshot" not in maps.read_text(), "the saver has no snapshot mapped")


def test_no_more_savers_are_started_while_the_disk_holds_those_that_were_killed(
    store: Store, strike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike("starting", "stop", times=100)
    with monkeypatch.context() as patch:
        patch.setattr(SaverProcess, "kill", lambda process: None)  # as if a frozen disk held it
        for n in range(4):
            with pytest.raises(SaveAbandoned):
                store.save_async({"n": n}, n, stall_timeout_s=0.1).result(DEADLINE_S)
        with pytest.raises(SaveFailed, match=r"4 savers of .* have not ended"):
            store.save_async({"n": 4}, 4)
    monkeypatch.setattr(module, "ENTRY", "ckstore.saver.server.main")
    for process in store._client().given_up():
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: all(process.ended(0) for process in store._client().given_up()), "they have ended")

    assert store.save_async({"n": 5}, 5).result(DEADLINE_S).step == 5


def test_a_kernel_that_has_no_huge_pages_is_asked_once_for_each_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refused(memory: memoryview) -> bool:
        asked.append(len(memory))
        return False

    monkeypatch.setattr(snapshot, "gather_huge_pages", refused)
    state = {"w": np.arange(40 * 2**20, dtype=np.uint8)}
    store.save_async(state, 1).result(DEADLINE_S)

    assert 1 <= len(asked) <= 2
    assert (store.load(1)["w"] == state["w"]).all()


def refuse(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_where_no_thread_can_be_started_the_one_there_is_copies_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(5 * 2**20)
    captured = capture({"w": data})
    places, nbytes = places_of(captured.sources)
    refuse(RuntimeError("can't start new thread"), monkeypatch)

    made = snapshot.Snapshot(nbytes)
    made.fill(captured.sources, places)

    assert os.pread(made.fd, data.nbytes, places[0].offset) == data.tobytes()
    made.close()


def test_ctrl_c_while_a_thread_is_started_leaves_no_descriptor_and_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    closed: list[int] = []
    memfd_create, close = os.memfd_create, os.close

    def noted(*how: Any) -> int:
        made.append(memfd_create(*how))
        return made[-1]

    def noted_close(fd: int) -> None:
        closed.append(fd)
        close(fd)

    monkeypatch.setattr(os, "memfd_create", noted)
    monkeypatch.setattr(os, "close", noted_close)
    refuse(KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        snapshot.Snapshot(40 * 2**20)

    assert len(made) == 1
    assert made[0] in closed
