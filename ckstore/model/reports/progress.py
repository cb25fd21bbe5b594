"""Progress callbacks of long operations."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""A function that is called periodically, in the thread of the caller, with the bytes done and the total bytes."""
