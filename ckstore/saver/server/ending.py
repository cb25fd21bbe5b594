"""Handles SIGTERM in a process that works during a training: it finishes its current work, within a time limit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

# The time limit, in seconds. It is below the 30 s that Slurm and Kubernetes wait between SIGTERM and SIGKILL.
_LAST_S = 20.0


class Ended(SystemExit):
    """Raised if SIGTERM came while the process had no work, or the time limit is over."""


class Ending:
    """Whether this process was asked to end.

    Attributes:
        is_asked: Whether SIGTERM came. The process then waits for no new work, and `Ended` is raised after the time
            limit.
    """

    def __init__(self, last_s: float = _LAST_S) -> None:
        self.is_asked = False
        self._is_waiting = False
        self._last_s = last_s

    def begin(self) -> None:
        """Handle SIGTERM from here on, in the main thread."""
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
        """Return a context in which to wait for work. SIGTERM ends it immediately, even if it came before.

        Raises:
            Ended: SIGTERM came.
        """
        self._is_waiting = True
        try:
            if self.is_asked:  # checked after the line above, since a signal after that line raises by itself
                raise Ended(0)
            yield
        finally:
            self._is_waiting = False
