"""A few threads for the time of one call: what they began has ended before the call goes on."""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from ckstore.objects.layout import Layout
from ckstore.ops import call_threads, config_file
from ckstore.ops.call_threads import Workers
from ckstore.store import context_of
from tests.support.stores import check_store


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(4)
    yield made
    made.stop()


def test_results_come_in_the_order_of_the_items(workers: Workers) -> None:
    def late(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item

    assert list(workers.map(late, range(20))) == [*range(20)]


def test_an_error_is_raised_when_nothing_runs_any_more(workers: Workers) -> None:
    """Else a thread may go on in a directory whose lock was released, and open something that stays open."""
    running: set[int] = set()
    failed = threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        running.add(item)
        if item == 0:
            failed.set()
            running.discard(item)
            raise OSError(24, "Too many open files")
        failed.wait(10)
        time.sleep(0.02)
        running.discard(item)
        done.append(item)

    with pytest.raises(OSError, match="Too many open files"):
        list(workers.map(work, range(100)))

    assert not running
    assert len(done) < 99  # what was not begun is dropped
    assert list(workers.map(abs, [-1, 2])) == [1, 2]


def test_who_leaves_early_closes_it_and_nothing_runs_any_more(workers: Workers) -> None:
    running: set[int] = set()

    def work(item: int) -> int:
        running.add(item)
        time.sleep(0.01)
        running.discard(item)
        return item

    with closing(workers.map(work, range(100))) as results:
        assert next(results) == 0

    assert not running


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", none)
    workers = Workers(2)

    assert list(workers.map(abs, [-1, 2])) == [1, 2]
    with pytest.raises(ValueError, match="invalid literal"):
        list(workers.map(int, ["x"]))
    workers.stop()


def test_what_threads_leave_that_die_before_their_first_line_is_done_by_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = _thread.start_new_thread

    def dying(function: Callable[..., object], args: tuple[object, ...]) -> int:
        # As for a thread whose first frame finds no memory: the interpreter drops its arguments, and it is gone.
        del function
        return start(bytes, (b"",)) if args else 0

    monkeypatch.setattr("_thread.start_new_thread", dying)
    workers = Workers(2)

    assert list(workers.map(abs, [-1, 2])) == [1, 2]
    assert workers.result(workers.submit(int, "3")) == 3
    workers.stop()


def test_work_that_a_dying_thread_could_not_begin_is_done_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    do, times = call_threads._do, [2]

    def without_memory(*job: Any) -> None:
        if times[0] and threading.current_thread() is not threading.main_thread():
            times[0] -= 1
            raise MemoryError
        do(*job)

    monkeypatch.setattr(call_threads, "_do", without_memory)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for count in (1, 2, 3):
        times[0] = 2
        workers = Workers(count)
        assert list(workers.map(abs, [-1, 2, -3])) == [1, 2, 3]
        workers.stop()
        assert not workers._threads


class Interrupting:
    """A method that does its work and then raises, as a signal handler does that runs right after it."""

    def __init__(self, method: Callable[..., Any], times: int) -> None:
        self._method = method
        self._times = times

    def __call__(self, *args: Any) -> object:
        done = self._method(*args)
        if self._times:
            self._times -= 1
            raise KeyboardInterrupt
        return done


class Jobs:
    """The queue of a pool, whose `put` is interrupted."""

    def __init__(self, jobs: Any, times: int) -> None:
        self._jobs = jobs
        self.put = Interrupting(jobs.put, times)

    def __getattr__(self, name: str) -> object:
        return getattr(self._jobs, name)


class Slow:
    """Work that says what of it runs."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.done: list[int] = []

    def __call__(self, item: int) -> None:
        self.running.add(item)
        time.sleep(0.03)
        self.running.discard(item)
        self.done.append(item)


def test_ctrl_c_right_after_a_job_was_given_leaves_nothing_running(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Slow()
    monkeypatch.setattr(workers, "_jobs", Jobs(workers._jobs, 1))

    with pytest.raises(KeyboardInterrupt):
        list(workers.map(work, range(8)))

    done = len(work.done)
    time.sleep(0.1)
    assert len(work.done) == done


def test_ctrl_c_again_waits_for_what_runs(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Slow()
    wait = Future.exception
    interrupting = iter([True, True])

    def exception(future: Future[Any], timeout: float | None = None) -> BaseException | None:
        if next(interrupting, False):
            raise KeyboardInterrupt
        return wait(future, timeout)

    monkeypatch.setattr(Future, "exception", exception)
    results = workers.map(work, range(8))
    next(results)
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt)

    assert not work.running


def test_a_pool_that_is_interrupted_when_it_stops_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Slow()
    workers = Workers(4)
    for item in range(8):
        workers.submit(work, item)
    monkeypatch.setattr(workers, "_jobs", Jobs(workers._jobs, 2))

    with pytest.raises(KeyboardInterrupt):
        workers.stop()

    assert not work.running
    assert not workers._threads


def test_ctrl_c_for_the_third_time_ends_the_wait_for_a_disk_that_hangs(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)  # the workers of pytest ignore SIGINT
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Future, "exception", interrupt)
            results = workers.map(hangs.wait, [None])
            threading.Timer(0.05, signal.pthread_kill, [threading.get_ident(), signal.SIGUSR1]).start()
            with pytest.raises(KeyboardInterrupt):
                next(results)
    finally:
        hangs.set()
        signal.signal(signal.SIGUSR1, before)


def test_without_threads_a_job_that_a_handler_broke_off_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    begin = Future.set_running_or_notify_cancel

    def interrupted(future: Future[Any]) -> bool:
        begin(future)
        raise KeyboardInterrupt

    monkeypatch.setattr("_thread.start_new_thread", none)
    monkeypatch.setattr(Future, "set_running_or_notify_cancel", interrupted)
    workers = Workers(2)

    with pytest.raises(KeyboardInterrupt):
        list(workers.map(abs, [-1, 2]))


def test_a_child_waits_for_no_thread_of_its_parent(workers: Workers) -> None:
    with closing(workers.map(Slow(), range(8))) as results:
        next(results)
        pid = os.fork()
        if pid == 0:
            results.close()
            os._exit(0)
        handle = os.pidfd_open(pid)
        ended, _, _ = select.select([handle], [], [], 10)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.close(handle)


def test_a_store_whose_settings_cannot_be_read_yet_stops_no_other_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a filesystem that hangs; with `functools.cached_property` of Python 3.11 the other save never ended."""
    slow, quick = Store.init(tmp_path / "slow"), Store.init(tmp_path / "quick")
    reading, may_go_on = threading.Event(), threading.Event()
    read_config = config_file.read_config

    def hanging(layout: Layout) -> Any:
        if layout.path == slow.path:
            reading.set()
            assert may_go_on.wait(120)
        return read_config(layout)

    monkeypatch.setattr(config_file, "read_config", hanging)
    with ThreadPoolExecutor(2) as pool:
        try:
            waiting = pool.submit(lambda: context_of(slow).threads)
            assert reading.wait(60)
            assert pool.submit(quick.save, {"x": 1}, 1).result(60).step == 1
            assert not waiting.done()
        finally:
            may_go_on.set()
    check_store(quick.path)
