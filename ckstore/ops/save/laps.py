"""How long the parts of a save took."""

from __future__ import annotations

import time


class Laps:
    """Seconds of each part; a part ends where the next begins, and can come again.

    Attributes:
        seconds: Part -> seconds.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()

    def end(self, part: str) -> None:
        """The part that was under way has ended."""
        now = time.monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._begun
        self._begun = now
