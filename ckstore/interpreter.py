"""Pause the cyclic garbage collector of Python, and log messages.

The collector is paused while very many small objects are created. A state of 50,000 tensors becomes more than a million
lists, tuples and records, and none of them is garbage. The collector would repeatedly examine these objects and all
objects of torch, which would take 40 % of the time of such a save.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_WARNING = 30  # the level of `logging`


class _Pause:
    """Counts the blocks that pause the collector; the first one stops it, and the end of the last one restarts it."""

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
            self._count = max(0, self._count - 1)  # a child that was forked in the block has called `forget`
            if self._count == 0 and self._stopped:
                self._stopped = False
                gc.enable()

    def forget(self) -> None:
        """Restart the collector in a forked child, where the threads that paused it do not exist."""
        self._mutex = threading.RLock()
        self._count = 0
        if self._stopped:
            self._stopped = False
            gc.enable()


_pause = _Pause()
os.register_at_fork(after_in_child=_pause.forget)


@contextmanager
def python_gc_paused() -> Iterator[None]:
    """Stop the collector of this process, if it runs, until every such block has ended."""
    # Use this only for blocks that compute, and not for blocks that write the bytes of a state. The exceptions are
    # short accesses to the catalog, and a capture, which calls `state_dict()` of the user's objects.
    try:
        _pause.begin()
        yield
    finally:
        _pause.end()


def log(level: int, text: str, *, name: str = "ckstore") -> None:
    """Log a message; if a handler fails, print its traceback to stderr, as `logging` does, and return normally."""
    import logging  # the import takes time, and most commands log nothing
    import traceback

    try:
        logging.getLogger(name).log(level, "%s", text)
    except Exception:  # noqa: BLE001 - handlers are the user's own code
        with suppress(OSError, ValueError, AttributeError):  # there is no standard error
            traceback.print_exc(file=sys.stderr)


def log_notes(name: str, notes: Iterable[str], told: set[str]) -> None:
    """Log the notes of a save; a note about its checkpoint is logged each time, and any other note once."""
    # Do not use a `CkstoreWarning`. A filter may turn it into an error, although the checkpoint is saved. `told` has
    # the notes that were logged for other saves, with 0 in place of each number.
    for note in dict.fromkeys(notes):
        kind = re.sub("[0-9]+", "0", note)
        if name not in note and kind in told:
            continue
        told.add(kind)
        log(_WARNING, note)
