"""Warn the caller of the store."""

from __future__ import annotations

from ckstore.errors import CkstoreWarning


def warn(message: str) -> None:
    """Give a `CkstoreWarning` that points to the line, outside ckstore, from which the store was called."""
    import inspect  # seldom needed, and slow to import
    import warnings

    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ckstore":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CkstoreWarning, stacklevel=level)
