"""Limits the memory that all threads of a transfer use for blobs together, and ends a failed transfer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer
from ckstore.model.wait_limit import wait_limit_s

# The limit, which equals six blobs of the default size, 32 MiB. With four blobs, a transfer to Ceph on the same machine
# took a third longer than with six. With eight, it was no faster. A whole transfer may use 256 MiB, so 64 MiB remain
# for everything else.
IN_FLIGHT_BYTES = 192 * 2**20
_LOOK_S = 0.5


def whole_blocks(nbytes: int) -> memoryview:
    """Return new memory of this size, aligned for direct reads and writes."""
    return aligned_buffer(max(1, -(-nbytes // GRAIN_BYTES)) * GRAIN_BYTES)[:nbytes]


class MemoryBudget:
    """Lets threads reserve memory. A thread waits while its request would exceed the limit.

    A single request above the limit reserves all of the memory. It waits until no other thread has reserved memory.
    """

    def __init__(self, nbytes: int = IN_FLIGHT_BYTES) -> None:
        self._all = self._free = nbytes
        self._changed = threading.Condition()
        self._is_ended = False
        # Buffers that are kept for reuse, since most blobs have the same size. Their total size never exceeds the
        # memory that is not reserved.
        self._idle: list[memoryview] = []

    @contextmanager
    def taking(self, nbytes: int) -> Iterator[None]:
        """Wait until `nbytes` are free, and reserve them until the end of the ``with`` block."""
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
            self._changed.wait_for(lambda: self._is_ended, wait_limit_s(seconds))

    def end(self) -> None:
        """Mark the transfer as failed, and end all waits."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def ending(self, close: Callable[[], None]) -> Callable[[], None]:
        """Return a function that ends the transfer. It must be called while an exception is handled.

        If this exception is an interrupt, the function also calls `close`, which ends the running requests. After any
        other exception it does not, because the cleanup still needs the remote.
        """

        def end() -> None:
            self.end()
            if not isinstance(sys.exception(), Exception):
                close()

        return end
