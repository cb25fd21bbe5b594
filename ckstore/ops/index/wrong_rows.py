"""Rows of the catalog that turned out to be wrong: they are written again from the directories, with one warning.

The catalog is an index. A row in which a bit has flipped does not fit its checksum; one that says something else than
its manifest was written by another program. Neither decides anything: see `ckstore.ops.index.facts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError
from ckstore.model.names import CheckpointKey
from ckstore.ops.context import warn
from ckstore.ops.index.reconcile import TIMEOUT_S, reconcile_all

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckstore.ops.context import Context

_PROBLEM = "rows"
# Mending is a favour to later calls; the call under way does not wait for it.
_MEND_TIMEOUT_S = 1.0


def remove(context: Context) -> list[str]:
    """Remove the rows that do not fit their checksums; return what the user should know."""
    count = context.catalog.remove_wrong(timeout_s=TIMEOUT_S)
    return [_damaged(count)] if count else []


def write_again(context: Context, places: Collection[CheckpointKey], *, damaged_count: int = 0) -> None:
    """Write the rows of checkpoints again from their directories, and warn, once for an open store."""
    # A failure is left for the next opening. `places`: whose rows are wrong or missing. `damaged_count`: how many rows
    # do not fit their checksums; 0: those of `places` do, and are still wrong.
    if _PROBLEM not in context.problems:
        said = _damaged(damaged_count) if damaged_count else _forged(places)
        context.problems[_PROBLEM] = said
        warn(said)
    for place in () if damaged_count else places:
        # With the stamp: a checkpoint that is saved there later has a row of its own, which counts.
        context.distrusted[place] = context.layout.stamp(*place)
    if context.readonly or context.writes_disabled_because:
        return
    try:
        if damaged_count:
            context.catalog.remove_wrong(timeout_s=_MEND_TIMEOUT_S)
        reconcile_all(context, sorted(places))
        for place in places:
            context.distrusted.pop(place, None)
    except (CkstoreError, OSError):  # the catalog cannot be written now, or a newer ckstore wrote one of them
        return


def _damaged(count: int) -> str:
    rows = "1 row of the catalog is" if count == 1 else f"{count} rows of the catalog are"
    return f"{rows} damaged; reading the manifests instead"


def _forged(places: Collection[CheckpointKey]) -> str:
    named = ", ".join(f"{run}@{step}" for run, step in sorted(places)[:3])
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"the catalog and the manifest disagree about {named}{more}; the manifest counts"
