"""Progress callbacks of long operations."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called periodically, in the thread of the caller, with the number of bytes done and of all bytes to do."""
