"""How much memory the blobs on their way take together, whatever the number of threads."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Four blobs of the default 32 MiB: a link is full by then, and 256 MiB for all of a transfer leave room for the rest.
IN_FLIGHT_BYTES = 128 * 2**20
_LOOK_S = 0.5


class MemoryBudget:
    """Lets threads take memory until it is used up; the next waits. What is larger than all of it goes alone."""

    def __init__(self, nbytes: int = IN_FLIGHT_BYTES) -> None:
        self._all = self._free = nbytes
        self._changed = threading.Condition()
        self._is_ended = False

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

    def end(self) -> None:
        """Let nothing wait any more: the transfer has failed."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
