"""Keep Python's cyclic garbage collector out of stretches that make very many small objects.

A state of 50,000 tensors becomes more than a million lists, tuples and records, none of them garbage. The collector
looks at them again and again meanwhile, and at everything that torch has in memory: 40 % of the time of such a save.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
    """Stop the collector of this process, if it runs, until every such stretch has ended.

    For stretches that compute. None writes the bytes of a state; two ask the catalog, which has a deadline of seconds,
    and a capture calls `state_dict()` of the user's objects.
    """
    try:
        _pause.begin()
        yield
    finally:
        _pause.end()
