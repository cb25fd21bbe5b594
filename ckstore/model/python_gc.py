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
        self._mutex = threading.Lock()
        self._count = 0
        self._stopped = False

    def begin(self) -> None:
        with self._mutex:
            self._count += 1
            if self._count == 1 and gc.isenabled():
                gc.disable()
                self._stopped = True

    def end(self) -> None:
        with self._mutex:
            self._count -= 1
            if self._count == 0 and self._stopped:
                self._stopped = False
                gc.enable()

    def forget(self) -> None:
        """In a child: what other threads began is not there, and nobody would let the collector go on."""
        self._mutex = threading.Lock()
        self._count = 0
        if self._stopped:
            self._stopped = False
            gc.enable()


_pause = _Pause()
os.register_at_fork(after_in_child=_pause.forget)


@contextmanager
def python_gc_paused() -> Iterator[None]:
    """Stop the collector of this process, if it runs, until every such stretch has ended; for seconds at most."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()
