"""Warn the caller of the store."""

from __future__ import annotations

from ckstore.errors import CkstoreWarning

_told: set[str] = set()
"""What was warned of in this process that is true of a place, and not of one act."""


def warn(message: str) -> None:
    """Give a `CkstoreWarning` that points to the line, outside ckstore, from which the store was called."""
    import inspect  # seldom needed, and slow to import
    import warnings

    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ckstore":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CkstoreWarning, stacklevel=level)


def warn_not_durable(why: str) -> None:
    """Warn, once in a process for each store, that a power cut may lose what is saved in it; nothing if not `why`."""
    if why and why not in _told:
        _told.add(why)
        warn(f"a power cut may lose what is saved here: {why}")
