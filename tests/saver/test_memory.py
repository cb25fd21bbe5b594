"""The memory of a snapshot is that of the trainer: a saver gives it back with each save."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import InsufficientSpace, SaveAbandoned, SaveFailed
from ckstore.fs.mapping import HUGE_BYTES
from ckstore.saver.client import process as module
from ckstore.saver.client import snapshot
from ckstore.saver.client.process import SaverProcess
from ckstore.saver.client.snapshot import places_of
from ckstore.tensors.state_capture import capture
from tests.saver.conftest import DEADLINE_S, wait_for


def test_a_saver_keeps_no_snapshot(store: Store) -> None:
    for n in range(5):  # each is larger, so each has a snapshot of its own
        state = {"large": np.full(700_000 * (n + 1), n, np.float32), "small": [np.full(5, n)], "long": "x" * 5000}
        store.save_async(state).result(DEADLINE_S)

    maps = Path(f"/proc/{store.background._client().pid()}/maps")
    wait_for(lambda: "ckstore-snapshot" not in maps.read_text(), "the saver has no snapshot mapped")


def test_a_save_that_ends_after_its_store_was_closed_gives_its_snapshot_back(store: Store, strike: Any) -> None:
    def snapshots() -> int:
        descriptors = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return sum(text.count("ckstore-snapshot") for text in (*descriptors, Path("/proc/self/maps").read_text()))

    gc.collect()  # of other tests
    others = snapshots()
    folder = strike("syncing", "wait", 1)
    pending = store.save_async({"w": np.full(700_000, 1, np.float32)}, 1)
    wait_for((folder / "struck-0").exists, "it is syncing")
    store.close(timeout_s=0.1)
    assert snapshots() > others
    (folder / "go-0").touch()

    assert pending.result(DEADLINE_S).step == 1
    wait_for(lambda: snapshots() <= others, "the memory is freed")
    # The store can be used again, and keeps a snapshot from then on.
    store.save_async({"w": np.full(700_000, 2, np.float32)}, 2).result(DEADLINE_S)
    assert snapshots() > others
    store.close()
    assert snapshots() <= others


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
    for process in store.background._client().given_up():
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: all(process.ended(0) for process in store.background._client().given_up()), "they have ended")

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


def second_descriptors(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets a second descriptor of each file in memory."""
    memfd_create = os.memfd_create
    made: list[int] = []

    def noted(*how: Any) -> int:
        fd = memfd_create(*how)
        made.append(os.dup(fd))
        return fd

    patch.setattr(os, "memfd_create", noted)
    return made


@pytest.mark.parametrize("stage", ["_gather", "posix_fallocate", "_fault_in"])
def test_a_snapshot_that_cannot_be_made_gives_its_pages_back_at_once(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    fallocate, clear = os.posix_fallocate, snapshot.Snapshot._fault_in
    nbytes = snapshot.Snapshot.size_for(40 * 2**20)
    made = second_descriptors(monkeypatch)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no memory, of this test")

    def allocate(fd: int, start: int, length: int) -> None:
        last = nbytes - HUGE_BYTES if stage == "_gather" else 0
        if stage != "_fault_in" and start == last and (stage == "_gather") == (length == 1):
            full()
        fallocate(fd, start, length)

    def cleared(one: snapshot.Snapshot) -> None:
        clear(one)
        if stage == "_fault_in":
            full()

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(snapshot.Snapshot, "_fault_in", cleared)
    with pytest.raises(InsufficientSpace, match=r"no memory for a snapshot of 40\.0 MiB") as caught:
        snapshot.Snapshot(nbytes)
    (fd,) = made
    kept = os.fstat(fd)
    os.close(fd)

    assert caught.value.__cause__ is not None  # the error, and what its frames refer to, is still there
    assert kept.st_blocks == 0


def test_memory_is_asked_for_in_parts_that_end_before_the_next_signal_of_a_profiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fallocate, asked = os.posix_fallocate, [0]

    def noted(fd: int, start: int, length: int) -> None:
        if length > 1:  # else for a huge page
            assert start == sum(asked)
            asked.append(length)
        fallocate(fd, start, length)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    made = snapshot.Snapshot(50 * 2**20)

    assert sum(asked) == made.nbytes
    assert max(asked) <= 16 * 2**20
    made.close()


def test_memory_that_a_thread_may_still_write_to_is_not_taken_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    writers: list[threading.Thread] = []
    made = second_descriptors(monkeypatch)

    def write(work: list[Callable[[], None]]) -> None:
        begun.set()
        assert go.wait(DEADLINE_S)
        work[-1]()

    def interrupted(work: list[Callable[[], None]]) -> list[BaseException]:
        writers.append(threading.Thread(target=write, args=(work,)))
        writers[0].start()
        assert begun.wait(DEADLINE_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshot.Snapshot, "_gather", lambda _: None)
    monkeypatch.setattr(snapshot, "_in_parallel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        snapshot.Snapshot(40 * 2**20)
    go.set()
    writers[0].join(DEADLINE_S)  # a page that is not there would have ended this process by SIGBUS
    (fd,) = made
    size = os.fstat(fd).st_size
    os.close(fd)

    assert size == 40 * 2**20


def test_large_storages_lie_where_pages_begin_and_no_two_share_a_byte() -> None:
    sizes = [5, 2**20, 2**20 - 1, 3 * 2**20 + 1, 2**20, 64, 1, 2**21]
    sources = capture({str(i): np.zeros(nbytes, np.uint8) for i, nbytes in enumerate(sizes)}).sources

    for first in ((), (3, 0)):
        places, nbytes = places_of(sources, (1,), first)

        assert places[1].offset == -1  # it is kept
        placed = sorted((place for place in places if place.offset >= 0), key=lambda place: place.offset)
        ends = [place.offset + place.nbytes for place in placed]
        assert all(end <= after.offset for end, after in zip(ends, placed[1:], strict=False))
        assert ends[-1] <= nbytes <= sum(map(snapshot.aligned, sizes))
        assert all(place.offset % (4096 if place.nbytes >= 2**20 else 64) == 0 for place in placed)
