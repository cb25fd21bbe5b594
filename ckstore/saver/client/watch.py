"""Slow or stuck: a saver that gets on says so, or at least uses the processor."""

from __future__ import annotations

import time
from pathlib import Path

# Ten looks: a trainer that was stopped for longer (SIGSTOP, a laptop's lid) must not blame its saver.
_LATE_S = 5.0


class StallWatch:
    """For how long a process has done nothing although there was something to do."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._seen: object = None
        self._moved_at = self._looked_at = time.monotonic()

    def idle_s(self, said: object, *, is_busy: bool) -> float:
        """Return for how many seconds neither what it said nor the time that it used has changed."""
        now = time.monotonic()
        sign = (said, self._ticks())
        # This process itself may have been stopped for a while, in which its saver could say nothing that it heard.
        if sign != self._seen or not is_busy or now - self._looked_at > _LATE_S:
            self._seen = sign
            self._moved_at = now
        self._looked_at = now
        return now - self._moved_at

    def _ticks(self) -> tuple[bytes, ...]:
        """Return the processor time of the process; nothing where the system does not say."""
        try:
            # From the last parenthesis: a process may be named "a) b".
            fields = self._stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            return ()
        # utime and stime: a saver that hashes 100 GB says nothing new for a while, but uses the processor.
        return tuple(fields[11:13])
