"""A progress line on stderr for long operations.

The line, such as ``verifying  37 %  1.2 GiB of 3.4 GiB  0:12 left``, is rewritten at most ten times a second and
erased at the end. It is not printed if stderr is not a terminal, or if the output is JSON.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

from ckstore.model.sizes import size_text
from ckstore.model.words import printable
from ckstore_cli._format import cut

# A line that is drawn more often only flickers, and each drawing is a write to a terminal that may be slow (ssh).
_PERIOD_S = 0.1
# The seconds before the first estimate, since an earlier estimate would change strongly from second to second.
_SETTLE_S = 2.0
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """A context manager that shows the progress of work of known or unknown size. It is for one thread."""

    def __init__(
        self,
        what: str,  # a word for the work, such as ``"verifying"``
        total_bytes: int | None = None,  # if None, only the amount done is shown
        *,
        quiet: bool = False,  # show nothing, even on a terminal (``--json``)
        stream: TextIO | None = None,  # if None, stderr
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = what
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._stream = sys.stderr if stream is None else stream
        self._shown = self._stream.isatty() and os.environ.get("TERM") != "dumb" and not quiet
        self._clock = clock
        self._started_s = clock()
        self._next_s = self._started_s  # the first report is drawn at once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()

    def advance(self, nbytes: int) -> None:
        """Add `nbytes` to the amount done, and draw the line if it is due."""
        self.done_bytes += nbytes
        now_s = self._clock()
        if self._shown and now_s >= self._next_s:
            self._next_s = now_s + _PERIOD_S
            width = shutil.get_terminal_size().columns
            text = cut(self.text(now_s), width - 1)  # a full line would wrap
            self._stream.write(_CLEAR_LINE + text)
            self._stream.flush()

    def at(self, done_bytes: int, all_bytes: int) -> None:
        """Set the amount done and the total. The library calls this as `progress`."""
        self.total_bytes = all_bytes
        self.advance(done_bytes - self.done_bytes)

    def text(self, now_s: float) -> str:
        """Return the line for the time `now_s`."""
        done = [size_text(self.done_bytes)]
        if self.total_bytes:
            share = min(self.done_bytes / self.total_bytes, 1.0)
            done = [f"{int(share * 100)} %", f"{done[0]} of {size_text(self.total_bytes)}", *self._left(now_s)]
        return "  ".join([printable(self.what), *done])

    def _left(self, now_s: float) -> list[str]:
        """Return the estimated remaining time, or nothing while it cannot be estimated."""
        spent_s = now_s - self._started_s
        if spent_s < _SETTLE_S or not self.done_bytes or self.total_bytes is None:
            return []
        left_s = int(spent_s * max(self.total_bytes - self.done_bytes, 0) / self.done_bytes)
        hours, rest_s = divmod(left_s, 3600)
        minutes, seconds = divmod(rest_s, 60)
        clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
        return [f"{clock} left"]
