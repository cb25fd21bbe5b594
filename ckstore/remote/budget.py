"""Limits the memory of all blobs in a transfer, whatever the number of threads, and ends a failed transfer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer

# The limit for blobs, which equals six blobs of the default size, 32 MiB. With four blobs, a transfer to Ceph on the
# same machine took a third longer. With eight, it was no faster. A whole transfer may use 256 MiB, so 64 MiB remain for
# everything else.
IN_FLIGHT_BYTES = 192 * 2**20
_LOOK_S = 0.5


def whole_blocks(nbytes: int) -> memoryview:
    """Return new memory of this size, aligned for direct reads and writes."""
    return aligned_buffer(max(1, -(-nbytes // GRAIN_BYTES)) * GRAIN_BYTES)[:nbytes]


class MemoryBudget:
    """Lets threads reserve memory up to a limit, and makes further threads wait.

    A request above the limit reserves all of the memory, so it waits until no other thread has any.
    """

    def __init__(self, nbytes: int = IN_FLIGHT_BYTES) -> None:
        self._all = self._free = nbytes
        self._changed = threading.Condition()
        self._is_ended = False
        # Buffers that are kept for reuse, since most blobs have the same size. Together they never exceed the free
        # memory.
        self._idle: list[memoryview] = []

    @contextmanager
    def taking(self, nbytes: int) -> Iterator[None]:
        """Wait until `nbytes` are free, and reserve them for the block."""
        taken = min(nbytes, self._all)
        with self._changed:
            # Each wait is short, because Ctrl-C cannot interrupt a wait without a timeout.
            while self._free < taken and not self._is_ended:
                self._changed.wait(_LOOK_S)
            self._free -= taken
        try:
            yield
        finally:
            with self._changed:
                self._free += taken
                self._changed.notify_all()

    @contextmanager
    def lending(self, nbytes: int) -> Iterator[memoryview]:
        """Reserve memory as `taking` does, and yield a buffer aligned for direct writes. It may contain old bytes."""
        # Old buffers are reused, because getting new memory from the kernel takes longer than hashing that many bytes.
        wanted = max(1, -(-nbytes // GRAIN_BYTES)) * GRAIN_BYTES
        with self.taking(wanted):
            memory = self._take_idle(wanted) or aligned_buffer(wanted)
            yield memory[:nbytes]
            with self._changed:
                if wanted < self._all:
                    self._idle.append(memory)

    def _take_idle(self, wanted: int) -> memoryview | None:
        with self._changed:
            at = next((at for at, memory in enumerate(self._idle) if len(memory) == wanted), None)
            found = None if at is None else self._idle.pop(at)
            while sum(map(len, self._idle)) > self._free:
                self._idle.pop()
            return found

    @property
    def is_ended(self) -> bool:
        """Whether the transfer has failed, so that no request should be repeated."""
        return self._is_ended

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`, or until the transfer has failed."""
        with self._changed:
            # A wait must not exceed the longest timeout of a thread. The wait for a terabyte at one byte per second
            # would do so.
            self._changed.wait_for(lambda: self._is_ended, min(seconds, threading.TIMEOUT_MAX))

    def end(self) -> None:
        """Mark the transfer as failed, and end all waits."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def ending(self, close: Callable[[], None]) -> Callable[[], None]:
        """Return a function for error handlers that ends the transfer and, after an interrupt, also calls `close`.

        `close` ends the running requests. It is not called after other errors, because the cleanup needs the remote.
        """

        def end() -> None:
            self.end()
            if not isinstance(sys.exception(), Exception):
                close()

        return end
