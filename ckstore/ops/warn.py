"""Say what the user should know: as a warning before something is done, in the log when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable, CkstoreWarning
from ckstore.model.names import DEFAULT_RUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckstore.ops.context import Context

_CATALOG = "catalog"
_UNNAMED = "unnamed run"

_told_not_durable: set[str] = set()
"""Why stores are not durable: what this process has warned of."""


def warn(message: str) -> None:
    """Give a `CkstoreWarning` that points to the line, outside ckstore, from which the store was called."""
    import inspect  # seldom needed, and slow to import
    import warnings

    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ckstore":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CkstoreWarning, stacklevel=level)


def tell_unavailable(context: Context, error: CatalogUnavailable) -> None:
    """Warn, once for an open store, that the directories are read because the catalog cannot be used.

    Not where this user cannot open it, or another process replaces it at this moment, or who only reads has none of
    their own: then nothing is to be done.
    """
    has_none = context.catalog_is_private and error.why == "missing"
    if error.why == "unreadable" or _CATALOG in context.problems or has_none:
        return
    hint = f"; {error.hint}" if error.hint else ""
    context.problems[_CATALOG] = f"{error.message}: reading the directories instead, which takes longer{hint}"
    warn(context.problems[_CATALOG])


def tell_not_durable(context: Context) -> None:
    """Warn, once in a process for each store, if a power cut may lose what is saved in it."""
    why = context.not_durable_because
    if why and why not in _told_not_durable:
        _told_not_durable.add(why)
        warn(f"a power cut may lose what is saved here: {why}")


def tell_notes(context: Context, notes: Sequence[str]) -> None:
    """Log what a save says besides, each sentence once for an open store.

    It is no `CkstoreWarning`, which a filter may turn into an error: the checkpoint is saved.
    """
    new = [note for note in dict.fromkeys(notes) if note not in context.told]
    if new:
        import logging  # not where all is well: it takes milliseconds

        context.told.update(new)
        for note in new:
            logging.getLogger("ckstore").warning("%s", note)


def tell_unnamed_run(context: Context) -> None:
    """Warn, once for an open store, if a save that names no run leaves the run that a load without a name took.

    For a load that is the only run there is, for a save the run main. Only memory is looked at.
    """
    loaded = sorted(run for run in context.last_parents if run)
    if context.run_was_open and loaded and DEFAULT_RUN not in loaded and _UNNAMED not in context.told:
        context.told.add(_UNNAMED)
        warn(
            f"this save names no run, so it goes to the run {DEFAULT_RUN}; what was loaded is of the run {loaded[0]}: "
            f"to go on with that, open the store with run={loaded[0]!r}; else give run={DEFAULT_RUN!r}"
        )
