"""A few threads for the time of one call; where the interpreter gives none any more, the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

R = TypeVar("R")


class Workers:
    """As a `ThreadPoolExecutor`, but it also works in `atexit` handlers and where no thread can be started."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def submit(self, work: Callable[..., R], *args: Any) -> Future[R]:
        """Begin `work`, in a thread if there can be one, else now and here."""
        try:
            return self._pool.submit(work, *args)
        except RuntimeError:  # "cannot schedule new futures after interpreter shutdown", "can't start new thread"
            done: Future[R] = Future()
            try:
                done.set_result(work(*args))
            except BaseException as error:  # noqa: BLE001 - a future keeps any error for whoever asks for the result
                done.set_exception(error)
            return done

    def stop(self) -> None:
        """Drop what was not begun, and wait for the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)
