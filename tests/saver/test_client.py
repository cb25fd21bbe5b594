"""The trainer's side of background saves meets with Ctrl-C, a lack of descriptors and threads, and forks."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ckstore import Store
from ckstore.errors import BadInput, SaveAbandoned, SaveFailed, UnknownOutcome
from ckstore.saver import wire
from ckstore.saver.client import process, savers, snapshot
from ckstore.saver.client.client import Client
from ckstore.saver.client.keeper import SaverKeeper
from ckstore.saver.client.snapshot import Snapshot, SnapshotPool
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.saver.test_save_async import is_state, state_of
from tests.support.requirements import representatives


def test_a_call_that_is_interrupted_after_its_save_was_begun_leaves_the_copy_to_it(
    store: Store, strike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = strike("staging", "wait", 1)
    send_waiting, caller = SaverKeeper.send_waiting, threading.get_ident()

    def interrupted(keeper: SaverKeeper) -> None:
        if threading.get_ident() == caller:
            raise KeyboardInterrupt
        send_waiting(keeper)

    with monkeypatch.context() as patched:
        patched.setattr(SaverKeeper, "send_waiting", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save_async(state_of(0), step=0)
    wait_for((folder / "struck-0").exists, "it is staging")
    second = store.save_async(state_of(1), step=1, max_in_flight=2)
    (folder / "go-0").touch()

    assert second.result(DEADLINE_S).step == 1
    assert is_state(store.load(0), 0)
    assert is_state(store.load(1), 1)


def test_a_copy_that_is_interrupted_has_ended_in_both_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    join, caller = threading.Thread.join, threading.current_thread()
    begun, go = threading.Event(), threading.Event()
    interrupts = [KeyboardInterrupt()]
    copied: list[int] = []

    def copy() -> None:
        if threading.current_thread() is caller:
            assert begun.wait(DEADLINE_S)
            return
        begun.set()
        assert go.wait(DEADLINE_S)
        copied.append(1)

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if interrupts:
            raise interrupts.pop()
        go.set()
        join(thread, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", interrupted)
        errors = snapshot._in_parallel([copy, copy])
        ended = [*copied]
        go.set()
    assert ended == [1]
    assert isinstance(errors[0], KeyboardInterrupt)


@pytest.mark.parametrize("lacking", representatives(["descriptors", "threads"], "threads"))
def test_saves_whose_saver_cannot_be_replaced_end_with_the_cause(
    store: Store, strike: Any, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    folder = strike("hashing", "wait", 1)
    pending = store.save_async(state_of(0), step=0)
    wait_for((folder / "struck-0").exists, "it is hashing")
    start = threading.Thread.start

    def no_descriptors() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def no_threads(thread: threading.Thread) -> None:
        if thread.name == "ckstore-saver":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        if lacking == "descriptors":
            patched.setattr(wire, "pair", no_descriptors)
        else:
            patched.setattr(threading.Thread, "start", no_threads)
        pid = store.background._client().pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SaveFailed, match=r"could not be started: .*(open files|new thread)"):
            pending.result(DEADLINE_S)
        with pytest.raises(SaveFailed, match="could not be started"):
            store.save_async(state_of(1), step=1)
    assert store.save_async(state_of(2), step=2).result(DEADLINE_S).step == 2


def test_a_save_ends_as_it_did_if_recording_its_end_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: SnapshotPool, snapshot: Snapshot, _most: int) -> None:
        snapshot.close()
        raise TypeError("a mistake in this test")

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotPool, "give", fail)
        assert store.save_async(state_of(0), step=0).result(DEADLINE_S).step == 0
        assert store.background.flush(DEADLINE_S)
    assert store.save_async(state_of(1), step=1).result(DEADLINE_S).step == 1


def test_all_saves_end_with_the_cause_if_the_thread_that_watches_them_fails(
    store: Store, strike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = strike("hashing", "wait", 1)

    def fail(*_: object) -> None:
        raise TypeError("a mistake in this test")

    with monkeypatch.context() as patched:
        patched.setattr(SaverKeeper, "_replace", fail)
        pending = [store.save_async(state_of(step), step, max_in_flight=2) for step in (0, 1)]
        wait_for((folder / "struck-0").exists, "it is hashing")
        pid = store.background._client().pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for one in pending:
            with pytest.raises(SaveFailed, match=r"watching the saver process \d+ failed: .*a mistake in this test"):
                one.result(DEADLINE_S)
    assert store.save_async(state_of(2), step=2).result(DEADLINE_S).step == 2


def test_the_saves_behind_an_abandoned_one_continue_if_its_snapshot_cannot_be_closed(
    store: Store, strike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = strike("hashing", "stop", 1)
    close = Snapshot.close

    def fail(snapshot: Snapshot) -> None:
        close(snapshot)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        first = store.save_async(state_of(0), 0, max_in_flight=2)
        wait_for((folder / "struck-0").exists, "it is hashing")
        patched.setattr(Snapshot, "close", fail)
        second = store.save_async(state_of(1), 1, max_in_flight=2, stall_timeout_s=1.0)
        with pytest.raises(SaveAbandoned):
            first.result(DEADLINE_S)
        assert second.result(DEADLINE_S).step == 1


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300])
def test_any_wait_may_be_longer_than_the_longest_of_a_lock(store: Store, strike: Any, timeout_s: float) -> None:
    folder = strike("hashing", "wait", 1)
    first = store.save_async(state_of(0), step=0)
    wait_for((folder / "struck-0").exists, "it is hashing")
    waits: list[Callable[[], object]] = [
        lambda: store.save_async(state_of(1), step=1, timeout_s=timeout_s).wait_staged(timeout_s),
        lambda: first.result(timeout_s),
        lambda: first.exception(timeout_s),
        lambda: store.background.wait(timeout_s),
        lambda: store.background.flush(timeout_s),
        lambda: store.close(timeout_s),
    ]
    errors: list[BaseException] = []

    def run(wait: Callable[[], object]) -> None:
        try:
            wait()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(wait,)) for wait in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.5)  # so that all of them have begun to wait
    (folder / "go-0").touch()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert errors == []
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("timeout_s", [math.nan, "1", True])
def test_a_timeout_that_is_not_a_number_is_refused(store: Store, strike: Any, timeout_s: Any) -> None:
    folder = strike("hashing", "wait", 1)
    pending = store.save_async(state_of(0), step=0)
    waits = (pending.result, pending.exception, pending.wait_staged, store.background.wait, store.background.flush)
    for wait in waits:
        with pytest.raises(BadInput, match="timeout must be a number of seconds"):
            wait(timeout_s)
    with pytest.raises(BadInput, match="timeout must be a number of seconds"):
        store.close(timeout_s)
    wait_for((folder / "struck-0").exists, "it is hashing")
    (folder / "go-0").touch()

    assert pending.result(DEADLINE_S).step == 0


def test_a_forked_child_does_not_wait_for_a_save_of_its_parent(store: Store, strike: Any) -> None:
    folder = strike("hashing", "wait", 1)
    before = store.save_async(state_of(0), step=0)
    wait_for((folder / "struck-0").exists, "it is hashing")

    def in_child() -> None:
        for wait in (store.background.wait, partial(store.background.flush, DEADLINE_S)):
            store.background._client()._of_parent = [before]
            with pytest.raises(UnknownOutcome, match=rf"process {os.getppid()} began the save of main@0"):
                wait()
            assert store.background.wait(DEADLINE_S)
        for call in (before.result, before.exception, before.wait_staged, before.cancel):
            with pytest.raises(UnknownOutcome, match=rf"wait for the save in process {os.getppid()}"):
                call()
        assert store.save_async(state_of(1), step=1).result(DEADLINE_S).step == 1

    child = os.fork()
    if not child:
        status = 1
        try:
            assert store.background._client()._of_parent == [before]
            in_child()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (folder / "go-0").touch()

    assert before.result(DEADLINE_S).step == 0
    assert store.background.wait(DEADLINE_S)


def test_a_child_that_was_forked_while_a_thread_looked_at_the_savers_can_look_itself() -> None:
    with process._children_mutex:
        child = os.fork()
        if not child:
            os._exit(0 if process._children_mutex.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_saver_that_closes_a_file_while_it_is_looked_at_is_listed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.background.prewarm()
    wait_for(store.savers, "the saver has opened its page")
    readlink = Path.readlink
    closed: list[Path] = []

    def first_is_closed(path: Path) -> Path:
        if not closed:
            closed.append(path)
            raise FileNotFoundError(path)
        return readlink(path)

    monkeypatch.setattr(Path, "readlink", first_is_closed)
    assert [one.pid for one in savers.savers_of(str(store.path))] == [store.background._client().pid()]
    assert closed


def test_memory_that_was_made_beforehand_is_kept_also_where_the_device_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SimpleNamespace(grouped_below_bytes=2**18)
    captured = SimpleNamespace(sources=[SimpleNamespace(name="w", nbytes=100, space=space)], space=space)
    monkeypatch.setattr("ckstore.saver.client.client.capture", lambda _: captured)

    def failing(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(Snapshot, "pin", failing)
    with pytest.raises(RuntimeError, match="CUDA error"):
        store.background.prewarm({})

    (kept,) = store.background._client()._queue.pool._free
    assert kept.fd >= 0


def test_two_threads_that_begin_at_once_have_the_same_saves_under_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, together = Client._begin, threading.Barrier(2)
    used: list[Client] = []

    def slow(client: Client) -> None:
        together.wait(DEADLINE_S)  # both have seen that there is none yet
        begin(client)

    monkeypatch.setattr(Client, "_begin", slow)
    threads = [threading.Thread(target=lambda: used.append(store.background._client())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    monkeypatch.undo()
    store.save_async(state_of(0), step=0)

    assert len(used) == 2
    assert used[0] is used[1]
    assert used[0] is store.background._client()
    assert store.background.wait(DEADLINE_S)
    assert is_state(store.load(0), 0)
