"""Threads for the duration of one call; if no thread can be started, the thread of the caller does the work.

The threads are started directly with `_thread`, because `threading` and `concurrent.futures` take process-wide locks.
If a signal handler that saves interrupted a thread holding such a lock, the save would deadlock.
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

from ckstore.interpreter import end_overdue_pauses

R = TypeVar("R")
T = TypeVar("T")
# The interval in seconds at which a waiting caller reports progress.
_LOOK_S = 0.1
# According to measurements, four threads keep a usual disk busy, and sixteen threads a disk of 26 GB/s. On 16 cores,
# sixteen threads are no faster than eight (docs/adr/0025).
_LEAST_THREADS, _MOST_THREADS = 4, 16
_PATIENCE = 3
"""The number of exceptions of signal handlers, such as Ctrl-C, after which a call stops waiting for its threads."""
_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def default_threads(cores: int) -> int:
    """Return the default number of threads of a call on this many cores."""
    # On up to eight cores, four threads are used: fewer do not keep a disk busy, and more gain less than a tenth
    # (docs/adr/0009). On more cores, half of them are used, since training continues during a save.
    return max(_LEAST_THREADS, min(cores // 2, _MOST_THREADS))


# Count the cores in the CPU affinity and not all cores of the machine. Otherwise a rank that is bound to four of 64
# cores would start sixteen threads on four cores.
DEFAULT_THREADS = default_threads(len(os.sched_getaffinity(0)))


class _Life:
    """An object to which only the interpreter refers while a thread runs, so that it is freed when the thread ends."""

    __slots__ = ("__weakref__",)


class Workers:
    """Executes submitted work in at most `count` threads.

    If no thread can be started, as in `atexit` handlers, or if threads die for lack of memory, the caller does the
    remaining work. `stop` must be called at the end.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # The threads do not exist in a forked child, where waiting for them would never end.
        self._pid = os.getpid()
        # A `SimpleQueue` takes no lock that a signal handler could need.
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._ended: SimpleQueue[weakref.ref[_Life]] = SimpleQueue()
        self._threads: list[weakref.ref[_Life]] = []
        self._next: list[_Life] = []  # the `_Life` of the thread that is being started

    def submit(self, work: Callable[..., R], *args: Any) -> Future[R]:
        """Start `work` in a thread if possible; otherwise do it now in this thread."""
        future: Future[R] = Future()
        self._begin(future, work, *args)
        return future

    def _begin(self, future: Future[R], work: Callable[..., R], *args: Any) -> None:
        # Start threads one by one as work arrives, so that a call with one item starts one thread.
        if len(self._threads) < self._count:
            self._start_one()
        if self._is_any_alive():
            self._jobs.put((future, work, args))
        else:
            # No thread can be started because of a process limit or interpreter shutdown, so do the work now.
            _do(future, work, args)

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Start `work` for each item; yield its results, or raise its errors, in the order of the items.

        When the generator ends, even with an error, no work is running. A caller that stops early must close the
        generator.
        """
        begun: list[Future[R]] = []
        try:
            for item in items:
                begun.append(Future())  # add it before its work begins, or a signal handler that raises could lose it
                self._begin(begun[-1], work, item)
            for future in begun:
                yield self.result(future)
        finally:
            # Wait even after an error, since running work could write to a directory that its caller discards.
            if os.getpid() == self._pid:
                _patiently(lambda: _drop(begun), lambda: self._is_any_alive() and not all(map(Future.done, begun)))

    def result(self, future: Future[R], say: Callable[[], object] | None = None) -> R:
        """Wait for submitted work; return its result or raise its error.

        `say` is called regularly while waiting.
        """
        while not future.done():
            with suppress(FutureTimeout):  # the work itself may also raise this error; then the future is done
                future.result(timeout=_LOOK_S)
            self.help_out()
            end_overdue_pauses()
            if say is not None:
                say()
        return future.result()

    def help_out(self) -> None:
        """Do queued work if every thread has died; callers that wait for work call this regularly."""
        if self._is_any_alive():
            return
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    _do(*job)

    def stop(self) -> None:
        """Drop work that was not started, and wait for running work; in a forked child, do nothing."""
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
            # Put one end mark for each thread into the queue. Each thread takes exactly one.
            self._jobs.put(None)
        # Only C code runs here, so a signal handler that raises cannot run between taking the end of a thread from the
        # queue and counting it.
        ends = islice(iter(self._ended.get, None), len(self._threads))
        deque(map(self._threads.remove, ends), 0)

    def _start_one(self) -> None:
        # The thread is counted before it is started. If a signal handler raises in between, the `_Life` of the thread
        # is freed at the latest in `_end`. This counts as the end of the thread, so that waiting for it returns. No
        # variable may refer to the `_Life`, since the traceback of the handler's error would keep it alive.
        # The end is recorded by C code, because a thread without memory cannot run even its first line of Python.
        self._next[:] = [_Life()]
        self._threads.append(weakref.ref(self._next[0], self._ended.put))
        # RuntimeError: "can't start new thread", "can't create new thread at interpreter shutdown".
        with suppress(RuntimeError):
            _thread.start_new_thread(self._work, (self._next.pop(),))

    def _work(self, life: _Life) -> None:
        # The interpreter refers to the object until this thread ends. A variable could keep it alive longer, in the
        # traceback of an error.
        del life
        while (job := self._jobs.get()) is not None:
            try:
                _do(*job)
            except BaseException:
                self._jobs.put(job)  # there was no memory to begin the job, so another thread or the caller does it
                raise
            del job  # free its objects before waiting for the next job


def _drop(begun: Sequence[Future[Any]]) -> None:
    """Cancel work that was not started, and wait for running work."""
    for future in begun:
        future.cancel()
    for future in begun:
        with suppress(CancelledError):
            future.exception()


def _patiently(end: Callable[[], object], is_more: Callable[[], bool]) -> None:
    """Call `end` until `is_more` returns False; only then raise exceptions of signal handlers, such as Ctrl-C."""
    # If an exception were raised immediately, threads would continue in a directory that is being deleted or whose lock
    # was released. The third exception ends the wait, so that the user can end the program even if a disk hangs.
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
    """Do the work for each item, beginning with the first, in `threads` threads; return when all work has ended.

    `say` is called in the caller's thread at intervals. After the first error in any thread, the remaining items are
    dropped, and `stopping` is called before this function waits for the other threads.
    """
    waiting = deque(items)

    def go_on() -> None:
        while True:
            try:
                item = waiting.popleft()
            except IndexError:  # no items are left
                return
            end_overdue_pauses()
            try:
                work(item)
            except BaseException:
                # Drop the items first, so that no other thread starts one while `stopping` runs.
                waiting.clear()
                stopping()
                raise
            # With one thread, the caller's own thread does the work and must also report.
            if threads == 1 and say is not None:
                say()

    # Use no pool for one thread, since starting and joining a thread costs more than a small load.
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
    """Wait for one piece of work, and raise its error; yield at intervals, and once more when the work is done."""
    while not future.done():
        try:
            future.exception(timeout=_LOOK_S)  # returns the error of the work
        except FutureTimeout:
            help_out()
            end_overdue_pauses()
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
