"""How long work says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called now and then, in the thread of the caller, with the bytes that are done and those to be done."""
