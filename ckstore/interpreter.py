"""Pause the cyclic garbage collector of Python, and log messages.

The collector is paused while very many small objects are created. A state of 50,000 tensors becomes more than a million
lists, tuples and records, and none of them is garbage. The collector would repeatedly examine these objects and all
objects of torch, which would take 40 % of the time of such a save.
"""

from __future__ import annotations

import gc
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

GC_PAUSED_MOST_S = 5.0
"""The longest pause of the collector in a call that handles a whole state. Without collections, a call with 20,000
tensors takes 0.5 to 0.9 of the time. On a busy machine, such a call takes several seconds. In a longer call this time
matters less, and the garbage of other threads may hold memory of a GPU."""

_WARNING = 30  # the level of `logging`


class _Pause:
    """The blocks that pause the collector. The first one stops it, and the end of the last one restarts it."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may save while this thread holds it
        self._blocks: dict[object, float] = {}  # each block, and when it is overdue
        self._stopped = False

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def begin(self, block: object, overdue_s: float) -> None:
        with self._mutex:
            if not self._blocks and gc.isenabled():
                self._stopped = True
                gc.disable()
            self._blocks[block] = overdue_s

    def end(self, block: object) -> None:
        with self._mutex:
            # The block is missing if it was overdue, or in a child that was forked in the block.
            self._blocks.pop(block, None)
            self._restart_if_last()

    def end_before(self, time_s: float) -> None:
        with self._mutex:
            for block in [block for block, overdue_s in self._blocks.items() if overdue_s < time_s]:
                del self._blocks[block]
            self._restart_if_last()

    def forget(self) -> None:
        """Restart the collector in a forked child, where the threads that paused it do not exist."""
        self._mutex = threading.RLock()
        self._blocks.clear()
        self._restart_if_last()

    def _restart_if_last(self) -> None:
        if not self._blocks and self._stopped:
            self._stopped = False
            gc.enable()


_pause = _Pause()
os.register_at_fork(after_in_child=_pause.forget)


@contextmanager
def python_gc_paused(*, most_s: float = math.inf) -> Iterator[None]:
    """Stop the collector of this process, if it runs, until every such block has ended or is overdue.

    A block is overdue after `most_s`. It ends when any thread calls `end_overdue_pauses`.
    """
    # Blocks that write the bytes of a state or wait for a disk need `most_s`, because other threads may make garbage
    # meanwhile. The exceptions are short accesses to the catalog, and a capture, which calls `state_dict()` of the
    # user's objects.
    block = object()
    try:
        _pause.begin(block, time.monotonic() + most_s)
        yield
    finally:
        _pause.end(block)


def end_overdue_pauses(within_s: float = 0.0) -> None:
    """Restart the collector if it was paused for too long, or would be after a wait of `within_s`.

    Code that waits for a disk, a network or another process calls this.
    """
    if _pause:  # this is called for each of thousands of reads
        _pause.end_before(time.monotonic() + within_s)


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
