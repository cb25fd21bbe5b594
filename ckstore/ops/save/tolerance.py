"""Tolerate a limited number of failed saves in a row, so that the training continues, and report them at the end."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, is_of_storage
from ckstore.interpreter import log
from ckstore.model.reports.not_saved import NotSaved
from ckstore.model.settings.patience import OnFailure, check_on_failure
from ckstore.ops.notices import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.ops.context import Context
    from ckstore.ops.pace import SaveTotals

_WARNING = 30  # of `logging`


def tolerated(context: Context, error: CkstoreError, run: str, step: int | None) -> NotSaved | None:
    """Return the result for a tolerated failed save, or None if its error must be raised."""
    if not is_of_storage(error):
        return None
    count = context.totals.tolerate(error.message)
    _untold.add(context.totals)
    return None if count > context.failed_saves_most else NotSaved(run, step, _without_frames(error), count)


def _without_frames(error: CkstoreError) -> CkstoreError:
    """Remove the tracebacks from an error and its causes, and return the error.

    The frames of a traceback refer to the state, and the caller may keep the error for a long time.
    """
    chain: list[BaseException] = [error]
    for link in chain:
        link.__traceback__ = None
        chain += [one for one in (link.__cause__, link.__context__) if one is not None and one not in chain]
    return error


def or_not_saved(
    context: Context, save: Callable[[], CheckpointInfo], on_failure: OnFailure, run: str, step: int | None
) -> CheckpointInfo | NotSaved:
    """Return the saved checkpoint; if `on_failure` is ``"warn"`` and the save fails, warn and return a `NotSaved`."""
    check_on_failure(on_failure)
    try:
        info = save()
    except CkstoreError as error:
        found = tolerated(context, error, run, step) if on_failure == "warn" else None
        if found is None:
            raise
    else:
        context.totals.worked()
        return info
    warn(
        f"{found.name} is not saved, and the program continues ({found.in_a_row} of at most "
        f"{context.failed_saves_most} in a row): {found.error}"
    )
    return found


_untold: set[SaveTotals] = set()
"""The totals of stores with failed saves that must still be reported, at the end of the process at the latest."""


def tell_failures(totals: SaveTotals) -> None:
    """Log one line about the failed saves since the last call, because earlier warnings may have scrolled away."""
    _untold.discard(totals)
    if text := totals.take_failures():
        log(_WARNING, text)


@atexit.register
def _tell_all() -> None:
    for totals in tuple(_untold):
        tell_failures(totals)


os.register_at_fork(after_in_child=_untold.clear)
