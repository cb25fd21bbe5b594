"""Python's cyclic garbage collector, and its log.

The collector is paused while very many small objects are made. A state of 50,000 tensors becomes more than a million
lists, tuples and records, and none of them is garbage. The collector would examine them repeatedly, and also everything
that torch has in memory. That would take 40 % of the time of such a save.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_WARNING = 30  # of `logging`


class _Pause:
    """How many stretches want the collector to rest: the first stops it, the last lets it go on."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may save while this thread holds it
        self._count = 0
        self._stopped = False

    def begin(self) -> None:
        with self._mutex:
            if self._count == 0 and gc.isenabled():
                self._stopped = True
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._mutex:
            self._count = max(0, self._count - 1)  # a child that was forked in the middle has forgotten
            if self._count == 0 and self._stopped:
                self._stopped = False
                gc.enable()

    def forget(self) -> None:
        """In a child: what other threads began is not there, and no thread would let the collector go on."""
        self._mutex = threading.RLock()
        self._count = 0
        if self._stopped:
            self._stopped = False
            gc.enable()


_pause = _Pause()
os.register_at_fork(after_in_child=_pause.forget)


@contextmanager
def python_gc_paused() -> Iterator[None]:
    """Stop the collector of this process, if it runs, until every such stretch has ended."""
    # For stretches that compute. None writes the bytes of a state; two ask the catalog, which has a deadline of
    # seconds, and a capture calls `state_dict()` of the user's objects.
    try:
        _pause.begin()
        yield
    finally:
        _pause.end()


def log(level: int, text: str, *, name: str = "ckstore") -> None:
    """Log something that is done: a handler that fails is reported as `logging` does it, and fails nothing."""
    import logging  # `ckstore log` has nothing to log
    import traceback

    try:
        logging.getLogger(name).log(level, "%s", text)
    except Exception:  # noqa: BLE001 - handlers are the user's own code
        with suppress(OSError, ValueError, AttributeError):  # there is no standard error
            traceback.print_exc(file=sys.stderr)


def log_notes(name: str, notes: Iterable[str], told: set[str]) -> None:
    """Log what a save says besides: what is about its checkpoint each time, anything else once."""
    # It is no `CkstoreWarning`, which a filter may turn into an error: the checkpoint is saved. `told`: what was logged
    # of other saves; numbers in it do not count.
    for note in dict.fromkeys(notes):
        kind = re.sub("[0-9]+", "0", note)
        if name not in note and kind in told:
            continue
        told.add(kind)
        log(_WARNING, note)
