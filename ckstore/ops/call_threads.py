"""Threads for the duration of one call; if no thread can be started, the thread of the caller does the work.

They are started directly by `_thread`: `threading` and `concurrent.futures` take locks of the whole process. The
thread may hold one of them when a signal handler that saves interrupts it.
"""

from __future__ import annotations

import _thread
import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")
T = TypeVar("T")
# How often the caller's thread may report progress while it waits.
_LOOK_S = 0.1
# By the measured costs, four threads keep a disk busy, and sixteen threads a disk of 26 GB/s. On 16 cores, sixteen
# threads are no faster than eight (docs/adr/0025).
_LEAST_THREADS, _MOST_THREADS = 4, 16
_PATIENCE = 3
"""After this many interruptions by Ctrl-C, or by exceptions of signal handlers, threads are no longer waited for."""
_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def default_threads(cores: int) -> int:
    """Return how many threads a call uses on this many cores, without a setting."""
    # Four on up to eight cores: fewer do not keep a disk busy, and more gained less than a tenth (docs/adr/0009). Half
    # of the cores beyond that, since training continues during a save.
    return max(_LEAST_THREADS, min(cores // 2, _MOST_THREADS))


# The affinity, not all cores of the machine: a rank bound to four of 64 would otherwise start sixteen threads on them.
DEFAULT_THREADS = default_threads(len(os.sched_getaffinity(0)))


class _Life:
    """An object that only the interpreter refers to while a thread runs, so that it is freed when the thread ends."""

    __slots__ = ("__weakref__",)


class Workers:
    """Executes submitted work in at most `count` threads.

    It also works in `atexit` handlers, in which no thread can be started, and if threads die for lack of memory: then
    the caller does the remaining work. `stop` must be called at the end.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # A forked child has none of the threads, and waiting for them there would never end.
        self._pid = os.getpid()
        self._jobs: SimpleQueue[_Job | None] = (
            SimpleQueue()
        )  # like `_ended`, it takes no lock that a handler could need
        self._ended: SimpleQueue[weakref.ref[_Life]] = SimpleQueue()
        self._threads: list[weakref.ref[_Life]] = []
        self._next: list[_Life] = []  # the `_Life` of the thread that is being started

    def submit(self, work: Callable[..., R], *args: Any) -> Future[R]:
        """Start `work` in a thread if possible; otherwise do it now in this thread."""
        future: Future[R] = Future()
        self._begin(future, work, *args)
        return future

    def _begin(self, future: Future[R], work: Callable[..., R], *args: Any) -> None:
        # One by one as work arrives: a call with one item starts one thread.
        if len(self._threads) < self._count:
            self._start_one()
        if self._is_any_alive():
            self._jobs.put((future, work, args))
        else:
            # No thread can be started (a limit of processes, or interpreter shutdown): do the work more slowly.
            _do(future, work, args)

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Start `work` for each item; yield its results, or raise its errors, in the order of the items.

        No work runs any more when the generator ends, even by an error. A caller that leaves early must close it.
        """
        begun: list[Future[R]] = []
        try:
            for item in items:
                begun.append(Future())  # first, so that it is waited for even if a signal handler raises
                self._begin(begun[-1], work, item)
            for future in begun:
                yield self.result(future)
        finally:
            # Even after an error: work that still runs would write to a directory that its caller discards.
            if os.getpid() == self._pid:
                _patiently(lambda: _drop(begun), lambda: self._is_any_alive() and not all(map(Future.done, begun)))

    def result(self, future: Future[R], say: Callable[[], object] | None = None) -> R:
        """Return the result of submitted work, or raise its error. `say` is called regularly meanwhile."""
        while not future.done():
            with suppress(FutureTimeout):  # the work may also raise it; then the future is done
                future.result(timeout=_LOOK_S)
            self.help_out()
            if say is not None:
                say()
        return future.result()

    def help_out(self) -> None:
        """Do queued work if every thread has died; callers that wait for work call this now and then."""
        if self._is_any_alive():
            return
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    _do(*job)

    def stop(self) -> None:
        """Drop work that was not started, and wait for the rest. A forked child has no threads to wait for."""
        if os.getpid() == self._pid:
            _patiently(self._end, lambda: bool(self._threads))

    def _is_any_alive(self) -> bool:
        return any(life() is not None for life in self._threads)

    def _end(self) -> None:
        self._next.clear()
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            # One end mark per thread, after the work in the queue; each thread takes exactly one.
            self._jobs.put(None)
        # Only C code runs here, so a signal handler that raises cannot run between taking the end of a thread from the
        # queue and counting it.
        ends = islice(iter(self._ended.get, None), len(self._threads))
        deque(map(self._threads.remove, ends), 0)

    def _start_one(self) -> None:
        # The thread is counted before it is started. If a signal handler raises in between, the `_Life` of that thread
        # is freed at the latest in `_end`, which counts as its end, so waiting for it returns. No variable refers to
        # the `_Life`, since the traceback of the handler's error would keep it.
        # C code records the end: a thread without memory cannot run even its first line of Python.
        self._next[:] = [_Life()]
        self._threads.append(weakref.ref(self._next[0], self._ended.put))
        # RuntimeError: "can't start new thread", "can't create new thread at interpreter shutdown".
        with suppress(RuntimeError):
            _thread.start_new_thread(self._work, (self._next.pop(),))

    def _work(self, life: _Life) -> None:
        del (
            life
        )  # the interpreter refers to it until this thread ends; a variable would keep it in the traceback of an error
        while (job := self._jobs.get()) is not None:
            try:
                _do(*job)
            except BaseException:
                self._jobs.put(job)  # there was no memory to start it: another thread, or the caller, does it
                raise
            del job  # its objects must not be kept until the next job


def _drop(begun: Sequence[Future[Any]]) -> None:
    """Cancel work that was not started, and wait for the rest."""
    for future in begun:
        future.cancel()
    for future in begun:
        with suppress(CancelledError):
            future.exception()


def _patiently(end: Callable[[], object], is_more: Callable[[], bool]) -> None:
    """Call `end` until `is_more` is False; raise exceptions of signal handlers, as at Ctrl-C, only afterwards."""
    # Otherwise threads would continue in a directory that is being deleted, or whose lock was released. The third
    # exception ends the wait: a hanging disk must not keep the user from ending the program.
    raised: list[BaseException] = []
    while is_more() and len(raised) < _PATIENCE:
        try:
            end()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)
    if raised:
        raise raised[-1]


def for_each(
    work: Callable[[T], object],
    items: Iterable[T],
    *,
    threads: int,
    say: Callable[[], None] | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Do the work for each item, in order, in `threads` threads; no work runs any more when this returns.

    `say` is called in the caller's thread now and then. `stopping` is called after the first error in any thread,
    before the others are waited for. Items that were not started are dropped then.
    """
    waiting = deque(items)

    def go_on() -> None:
        while True:
            try:
                item = waiting.popleft()
            except IndexError:  # no items are left
                return
            try:
                work(item)
            except BaseException:
                # First, so that no other thread starts an item while `stopping` runs.
                waiting.clear()
                stopping()
                raise
            # With one thread, the caller's own thread does the work and must also report.
            if threads == 1 and say is not None:
                say()

    # Without a pool: starting and joining a thread costs more than a small load.
    if threads == 1:
        go_on()
        return
    pool = Workers(threads)
    try:
        for future in [pool.submit(go_on) for _ in range(min(threads, len(waiting)))]:
            for _ in waited_for(future, pool.help_out):
                if say is not None:
                    say()
    except BaseException:
        stopping()
        raise
    finally:
        waiting.clear()
        pool.stop()


def waited_for(future: Future[Any], help_out: Callable[[], None]) -> Iterator[None]:
    """Wait for one piece of work, yielding now and then, and once more when it is done; raise its error."""
    while not future.done():
        try:
            future.exception(timeout=_LOOK_S)  # returns the error of the work
        except FutureTimeout:
            help_out()
            yield
    future.result()
    yield


def _do(future: Future[R], work: Callable[..., R], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work(*args)
    except BaseException as error:  # noqa: BLE001 - a future keeps any error for the caller of `result`
        future.set_exception(error)
        del future  # otherwise the error refers to itself through this frame
    else:
        future.set_result(result)
