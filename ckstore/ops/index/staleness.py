"""Where the catalog can be believed without a look at every checkpoint: the cost of a gc follows what it frees.

A directory has one link from each of its subdirectories on ext4, XFS and others, so one ``stat`` says how many
checkpoints a run has. Where that is what the catalog counts, no process has published or dropped anything unnoticed,
unless both happened equally often: then what is believed is a hint as the catalog always is, which makes gc leave
something for later, and never makes it take what is needed. Every opening compares them one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable
from ckstore.model.names import CheckpointKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.model.checkpoint.published import Stamp
    from ckstore.ops.context import Context


def runs_in_doubt(context: Context) -> set[str]:
    """Return the runs whose checkpoints must be compared one by one, since their number differs or cannot be told.

    Raises:
        CatalogUnavailable: It cannot be used.
    """
    known = context.catalog.counts()
    runs = known.keys() | set(context.layout.runs())
    return {run for run in runs if not (count := context.layout.subdirectory_count(run)) or known.get(run) != count}


def stamps(context: Context, places: Iterable[CheckpointKey]) -> dict[CheckpointKey, Stamp]:
    """Return which checkpoint is at each place, where there is one."""
    found = ((place, context.layout.stamp(*place)) for place in places)
    return {place: stamp for place, stamp in found if stamp is not None}


def chosen(context: Context, run: str, *, newest: int, off_every: int) -> dict[CheckpointKey, Stamp] | None:
    """Return places with stamps: the newest so many of a run, and all whose step `off_every` does not divide.

    None: the catalog does not say it. What it says is at each place is there.
    """
    if context.catalog_is_private:
        return None
    try:
        if run in runs_in_doubt(context):
            return None
        listing = context.catalog.chosen(run, newest=newest, off_every=off_every)
    except CatalogUnavailable:  # the directories say it
        return None
    if listing.wrong_count or stamps(context, listing.stamps) != listing.stamps:
        return None
    return listing.stamps
