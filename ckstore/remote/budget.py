"""How much memory the blobs on their way take together, whatever the number of threads; and what ends a transfer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer

# Six blobs of the default 32 MiB: with four Ceph on the same machine took a third longer, and eight were no faster.
# 256 MiB for all of a transfer leave room for the rest.
IN_FLIGHT_BYTES = 192 * 2**20
_LOOK_S = 0.5


def whole_blocks(nbytes: int) -> memoryview:
    """Return fresh memory of this size, aligned for direct reads and writes."""
    return aligned_buffer(max(1, -(-nbytes // GRAIN_BYTES)) * GRAIN_BYTES)[:nbytes]


class MemoryBudget:
    """Lets threads take memory until it is used up; the next waits. What is larger than all of it goes alone."""

    def __init__(self, nbytes: int = IN_FLIGHT_BYTES) -> None:
        self._all = self._free = nbytes
        self._changed = threading.Condition()
        self._is_ended = False
        # Most blobs have one size. Together never more than what is free, so that others find room.
        self._idle: list[memoryview] = []

    @contextmanager
    def taking(self, nbytes: int) -> Iterator[None]:
        """Wait until so many bytes are free, and hold them for the block."""
        taken = min(nbytes, self._all)
        with self._changed:
            # In short waits: a thread that waits for ever would keep a Ctrl-C from ending the transfer.
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
        """As `taking`, and give memory of this size, aligned for direct writes; it may hold what another blob left."""
        # The kernel takes longer to make fresh memory than a digest of it takes.
        wanted = max(1, -(-nbytes // GRAIN_BYTES)) * GRAIN_BYTES
        with self.taking(wanted):
            memory = self._found_idle(wanted) or aligned_buffer(wanted)
            yield memory[:nbytes]
            with self._changed:
                if wanted < self._all:
                    self._idle.append(memory)

    def _found_idle(self, wanted: int) -> memoryview | None:
        with self._changed:
            at = next((at for at, memory in enumerate(self._idle) if len(memory) == wanted), None)
            found = None if at is None else self._idle.pop(at)
            while sum(map(len, self._idle)) > self._free:
                self._idle.pop()
            return found

    @property
    def is_ended(self) -> bool:
        """Whether the transfer has failed: nothing is worth another try."""
        return self._is_ended

    def sleep(self, seconds: float) -> None:
        """Wait for so long, or until the transfer has failed."""
        with self._changed:
            # At a byte a second a terabyte takes longer than a thread can wait.
            self._changed.wait_for(lambda: self._is_ended, min(seconds, threading.TIMEOUT_MAX))

    def end(self) -> None:
        """Let nothing wait any more: the transfer has failed."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def ending(self, close: Callable[[], None]) -> Callable[[], None]:
        """Return what ends it in an error's handler: `close`, which ends requests in hand, only after a Ctrl-C."""
        # After any other error the remote is still needed, for what has to be taken back there.

        def end() -> None:
            self.end()
            if not isinstance(sys.exception(), Exception):
                close()

        return end
