"""Calls of the engine, each in a worker thread, so that the caller can be interrupted while the network stands still.

No signal interrupts a call of obstore: Ctrl-C would wait for its timeout. The caller waits for a lock instead, which
Python interrupts. Workers are daemons, so that an abandoned call does not hold up the end of the process.

The engine does not survive a fork: a call in a child whose parent has used it hangs. So the process that used it first
is remembered, and a child is refused.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ckstore.errors import RemoteError, RemoteUnavailable
from ckstore.remote.service.engine_errors import scrubbed

T = TypeVar("T")
# A worker that no call uses for so long ends; a call of a push follows another within milliseconds.
_IDLE_S = 10.0
# Longer than any request with its repetitions: the engine reads pages of a listing for as long as they are empty.
_CALL_S = 3600.0

_used_by_pid = 0
"""The process in which the engine was used first; 0: in none. A fork copies it, and so a child sees its parent."""


def check_process() -> None:
    """Raise in a child that was forked after its parent had used the engine."""
    global _used_by_pid  # noqa: PLW0603 - one engine a process
    pid = os.getpid()
    if _used_by_pid in (0, pid):
        _used_by_pid = pid
        return
    msg = (
        f"process {pid} was forked after process {_used_by_pid} had used a remote, and cannot use one: calls would hang"
    )
    raise RemoteError(msg, hint="start it by spawn, or use the remote first in the child")


def _broken(error: BaseException) -> RemoteError:
    """Return the error for a panic of the engine, which would pass every handler of `Exception`, up to the user."""
    return RemoteError(f"the engine broke: {scrubbed(str(error))}")


class _Call(Generic[T]):
    """One call on its way to a worker and back."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.done = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None


class CallThreads:
    """Threads that make calls, as many as there are calls at once. `stop` ends every wait at once.

    Args:
        of_engine: The calls are the engine's, which does not survive a fork.
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
        # A fork copies no threads, and a lock as a thread of the parent had it.
        if self._pid != os.getpid():
            self._begin()

    def call(self, function: Callable[[], T], most_s: float = 0.0) -> T:
        """Return what a function gives, or raise what it raises; the wait for it can be interrupted.

        It ends after an hour, or after `most_s` if that is longer.
        """
        # `RemoteUnavailable`: `stop` was called, before or meanwhile; or the call does not end.
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
            if not call.done.wait(call_s):
                raise RemoteUnavailable(f"no answer came within {call_s:g} s")
        finally:
            with self._mutex:
                self._waiting.discard(call)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # set where there is no error

    @property
    def stopped(self) -> bool:
        """Whether calls are refused by now."""
        return self._stopped

    def stop(self) -> None:
        """End every wait, and refuse further calls. What the service was asked already may still happen."""
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
            self._make(call)
            del call

    def _make(self, call: _Call[Any]) -> None:
        # A function of its own: a worker that waits keeps nothing of its last call, such as a directory that is open.
        try:
            result = call.function()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            if not call.done.is_set():
                call.error = error if isinstance(error, Exception) else _broken(error)
        else:
            if not call.done.is_set():
                call.result = result
        # Idle before the answer: the caller's next call must find this worker, not start another.
        with self._mutex:
            self._idle_count += 1
        call.done.set()
