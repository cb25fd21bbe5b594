"""Runs each call of the engine in a worker thread, so that the caller can be interrupted while the network stalls.

No signal interrupts a call of obstore, so Ctrl-C would take effect only after the timeout of the call. Therefore the
caller waits for an event, and Python can interrupt this wait. Workers are daemon threads, so that an abandoned call
does not delay the end of the process.

If a process has used the engine and then forks, calls in the child hang. Therefore the first process that uses the
engine is recorded, and calls in its children are refused.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ckstore.errors import RemoteError, RemoteUnavailable
from ckstore.interpreter import GC_PAUSED_MOST_S, end_overdue_pauses
from ckstore.remote.service.engine_errors import scrubbed

T = TypeVar("T")
# An idle worker ends after this time. The calls of a push follow each other within milliseconds.
_IDLE_S = 10.0
# The maximum wait for a call, longer than any request with its retries. In one call, the engine may read several empty
# pages of a listing.
_CALL_S = 3600.0

_used_by_pid = 0
"""The id of the first process that used the engine, or 0. A fork copies it, so a child knows the id of its parent."""


def check_process() -> None:
    """Raise `RemoteError` in a child that was forked after its parent had used the engine."""
    global _used_by_pid  # noqa: PLW0603 - one engine a process
    pid = os.getpid()
    if _used_by_pid in (0, pid):
        _used_by_pid = pid
        return
    msg = f"process {pid} was forked after process {_used_by_pid} had used a remote, so calls in it would hang"
    raise RemoteError(msg, hint="start it by spawn, or use the remote first in the child")


class _Call(Generic[T]):
    """A call for a worker, and its result."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.done = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None


class CallThreads:
    """Worker threads, as many as there are concurrent calls. `stop` ends all waits immediately.

    Args:
        of_engine: Whether the functions call the engine, which cannot be used after a fork.
    """

    def __init__(self, *, of_engine: bool = True) -> None:
        self._of_engine = of_engine
        self._stopped = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._calls: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._idle_count = 0
        self._waiting: set[_Call[Any]] = set()

    def _begin_in_child(self) -> None:
        # A fork copies no other threads, but it copies locks that other threads hold. So a child needs new ones.
        if self._pid != os.getpid():
            self._begin()

    def call(self, function: Callable[[], T], most_s: float = 0.0) -> T:
        """Return the result of a function, or raise its error. The wait can be interrupted.

        The wait ends after an hour, or after `most_s` if that is longer.

        Raises:
            RemoteUnavailable: `stop` was called, or the call did not end in time.
        """
        if self._of_engine:
            check_process()
        self._begin_in_child()
        call = _Call(function)
        with self._mutex:
            if self._stopped:
                raise RemoteUnavailable("the remote was closed")
            self._waiting.add(call)
            if self._idle_count:
                self._idle_count -= 1
            else:
                threading.Thread(target=self._work, name="ckstore-remote", daemon=True).start()
            self._calls.put(call)
        try:
            call_s = max(_CALL_S, most_s)
            # The time of a request is not known. Most requests take much less than the longest pause of the collector.
            first_s = min(GC_PAUSED_MOST_S, call_s)
            if not call.done.wait(first_s):
                end_overdue_pauses(call_s)
            if not call.done.wait(call_s - first_s):
                raise RemoteUnavailable(f"no answer came within {call_s:g} s")
        finally:
            with self._mutex:
                self._waiting.discard(call)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # set where there is no error

    @property
    def stopped(self) -> bool:
        """Whether further calls are refused."""
        return self._stopped

    def stop(self) -> None:
        """End all waits, and refuse further calls. Requests already sent may still take effect."""
        self._begin_in_child()
        with self._mutex:
            self._stopped = True
            waiting = tuple(self._waiting)
        for call in waiting:
            if not call.done.is_set():
                call.error = RemoteUnavailable("the remote was closed")
                call.done.set()

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._mutex:
                    if not self._calls.empty():
                        continue
                    self._idle_count = max(0, self._idle_count - 1)
                    return
            self._run_call(call)
            del call

    def _run_call(self, call: _Call[Any]) -> None:
        # This is a separate method, because an idle worker must keep no reference to objects of its last call, such as
        # an open directory.
        try:
            result = call.function()
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            if not call.done.is_set():
                # A panic of the engine is not an `Exception`, so handlers of callers would not catch it.
                is_panic = not isinstance(error, Exception)
                call.error = RemoteError(f"the engine crashed: {scrubbed(str(error))}") if is_panic else error
        else:
            if not call.done.is_set():
                call.result = result
        # The worker counts as idle before the call is marked as done. So the next call of the caller uses this worker
        # instead of starting another one.
        with self._mutex:
            self._idle_count += 1
        call.done.set()
