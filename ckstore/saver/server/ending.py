"""Handle SIGTERM in a process that works during a training. The process finishes its work within a time limit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

# The time limit, in seconds. It is below the 30 s that Slurm and Kubernetes wait between SIGTERM and SIGKILL.
_LAST_S = 20.0


class Ended(SystemExit):
    """Raised if SIGTERM arrived while the process had no work, or if the time limit is over."""


class Ending:
    """Records whether this process must end.

    Attributes:
        is_asked: Whether SIGTERM has arrived. The process must then wait for no new work. `Ended` is raised after the
            time limit.
    """

    def __init__(self, last_s: float = _LAST_S) -> None:
        self.is_asked = False
        self._is_waiting = False
        self._last_s = last_s

    def begin(self) -> None:
        """Begin to handle SIGTERM. Call this in the main thread."""
        signal.signal(signal.SIGALRM, self._over)
        signal.signal(signal.SIGTERM, self._asked)

    def _asked(self, *_: object) -> None:
        if self._is_waiting:
            raise Ended(0)
        if not self.is_asked:
            self.is_asked = True
            signal.setitimer(signal.ITIMER_REAL, self._last_s)

    def _over(self, *_: object) -> None:
        raise Ended(0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context in which to wait for work. SIGTERM ends the wait immediately, even if it arrived before.

        Raises:
            Ended: SIGTERM has arrived.
        """
        self._is_waiting = True
        try:
            if self.is_asked:  # checked after `_is_waiting` is set: for a later signal, `_asked` raises
                raise Ended(0)
            yield
        finally:
            self._is_waiting = False
