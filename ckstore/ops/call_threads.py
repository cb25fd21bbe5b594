"""A few threads for the time of one call; where the interpreter gives none any more, the caller's own.

They are started by `_thread` itself: what `threading` and `concurrent.futures` do around it takes locks of the whole
process, and a signal handler that saves may have interrupted its thread while that held one of them.
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
# Four keep a disk busy, sixteen one of 26 GB/s by what each costs; on 16 cores sixteen are no faster than eight
# (docs/adr/0025).
_LEAST_THREADS, _MOST_THREADS = 4, 16
_PATIENCE = 3
"""So many times Ctrl-C, or what another signal handler raises, comes before threads are waited for no more."""
_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def default_threads(cores: int) -> int:
    """Return how many threads a call works with on so many cores, if the settings do not say."""
    # Four on up to eight: fewer leave a disk waiting, more gained less than a tenth (docs/adr/0009). Half of the cores
    # above, since training goes on beside a save.
    return max(_LEAST_THREADS, min(cores // 2, _MOST_THREADS))


# The affinity, not the machine's cores: a rank that is bound to four of 64 would else start sixteen threads on them.
DEFAULT_THREADS = default_threads(len(os.sched_getaffinity(0)))


class _Life:
    """An object that only the interpreter refers to while a thread runs: it is freed when the thread has ended."""

    __slots__ = ("__weakref__",)


class Workers:
    """Works off what is submitted, by at most `count` threads.

    It also works in `atexit` handlers, where no thread can be started, and where threads die because memory is used up:
    then the caller does what they left. `stop` must follow.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # A forked child has none of the threads: waiting for them there would never end.
        self._pid = os.getpid()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # as `_ended`: it takes no lock that a handler could meet
        self._ended: SimpleQueue[weakref.ref[_Life]] = SimpleQueue()
        self._threads: list[weakref.ref[_Life]] = []
        self._next: list[_Life] = []  # of the thread that is being started

    def submit(self, work: Callable[..., R], *args: Any) -> Future[R]:
        """Begin `work`, in a thread if there can be one, else now and here."""
        future: Future[R] = Future()
        self._begin(future, work, *args)
        return future

    def _begin(self, future: Future[R], work: Callable[..., R], *args: Any) -> None:
        # One by one as work comes: a call with one item starts one thread.
        if len(self._threads) < self._count:
            self._start_one()
        if self._is_any_alive():
            self._jobs.put((future, work, args))
        else:
            # No thread can be started (a limit of processes, or interpreter shutdown): slower, but the save is made.
            _do(future, work, args)

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Begin `work` for each item; yield what it returns, or raise what it raises, in the order of the items.

        Nothing of it runs any more when this ends, also by an error. Who leaves early closes it.
        """
        begun: list[Future[R]] = []
        try:
            for item in items:
                begun.append(Future())  # first, so that it is waited for whatever a signal handler raises
                self._begin(begun[-1], work, item)
            for future in begun:
                yield self.result(future)
        finally:
            # Also after an error: work that still runs would write into a directory that its caller discards.
            if os.getpid() == self._pid:
                _patiently(lambda: _drop(begun), lambda: self._is_any_alive() and not all(map(Future.done, begun)))

    def result(self, future: Future[R]) -> R:
        """Return what submitted work returned, or raise what it raised."""
        while not future.done():
            with suppress(FutureTimeout):  # the work may raise it as well; then the future is done
                future.result(timeout=_LOOK_S)
            self.help_out()
        return future.result()

    def help_out(self) -> None:
        """Do what is queued, if every thread has died: who waits for work calls this now and then."""
        if self._is_any_alive():
            return
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    _do(*job)

    def stop(self) -> None:
        """Drop what was not begun, and wait for the rest. In a child that was forked since there are no threads."""
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
            # One end for each thread, behind the work in hand; each thread takes exactly one.
            self._jobs.put(None)
        # By C code alone: a signal handler that raises comes before an end is taken, or after it is counted.
        ends = islice(iter(self._ended.get, None), len(self._threads))
        deque(map(self._threads.remove, ends), 0)

    def _start_one(self) -> None:
        # Counted before it is started: whatever a signal handler raises in between, its life ends, and so it is waited
        # for. No variable refers to its life: the traceback of what the handler raises would keep that.
        # The end is noted by C code alone: a thread without memory can run no line of Python, not even its first.
        self._next[:] = [_Life()]
        self._threads.append(weakref.ref(self._next[0], self._ended.put))
        # RuntimeError: "can't start new thread", "can't create new thread at interpreter shutdown".
        with suppress(RuntimeError):
            _thread.start_new_thread(self._work, (self._next.pop(),))

    def _work(self, life: _Life) -> None:
        del life  # the interpreter has it until this thread has ended; here, the traceback of an error would keep it
        while (job := self._jobs.get()) is not None:
            try:
                _do(*job)
            except BaseException:
                self._jobs.put(job)  # there was no memory to begin it: another thread does it, or the caller
                raise
            del job  # what it refers to is not kept until the next comes


def _drop(begun: Sequence[Future[Any]]) -> None:
    """Cancel what was not begun, and wait for the rest."""
    for future in begun:
        future.cancel()
    for future in begun:
        with suppress(CancelledError):
            future.exception()


def _patiently(end: Callable[[], object], is_more: Callable[[], bool]) -> None:
    """Do `end` until there is no more; what a signal handler raises meanwhile, as at Ctrl-C, is raised afterwards."""
    # Else threads would go on in a directory that is taken apart, or whose lock was released. The third time ends the
    # wait: a disk that hangs must not keep the user who means it.
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
    """Do the work for each item, in their order, by `threads`; nothing of it runs any more when this ends.

    `say` is called in the caller's thread now and then; `stopping` after the first error, here or in a thread, before
    the others are waited for. Items not begun are dropped then.
    """
    waiting = deque(items)

    def go_on() -> None:
        while True:
            try:
                item = waiting.popleft()
            except IndexError:  # there are no more
                return
            try:
                work(item)
            except BaseException:
                # First, so that no other thread begins an item while `stopping` runs.
                waiting.clear()
                stopping()
                raise
            # With one thread no one else can say it: the caller's own thread does the work.
            if threads == 1 and say is not None:
                say()

    # No pool: starting and joining a thread costs more than a small load.
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
    """Wait for one piece of work: give None now and then until it is done, and once more then; raise what it raised."""
    while not future.done():
        try:
            future.exception(timeout=_LOOK_S)  # which returns what the work raised
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
        del future  # else the error refers to itself through this frame
    else:
        future.set_result(result)
