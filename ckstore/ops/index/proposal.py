"""Which few checkpoints have to be looked at to know the newest: the catalog proposes, the directories decide (rule D).

The names in the directories of the runs alone say which checkpoints there are. The catalog says what is in a directory,
by its name and inode number, and of those that it proposes as the newest every directory is looked at. So a run of
20,000 costs a list of names and not 20,000 looks. A manifest that another program put into an old directory of a long
run is found where that checkpoint is shown, opened or about to be dropped, by ``verify`` and ``reindex``, and by the
first opening after a start of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ckstore.errors import CatalogUnavailable
from ckstore.model.manifest.info import Stamp
from ckstore.model.names import CheckpointKey
from ckstore.objects.layout import OpenRuns
from ckstore.ops.context import Context

FEW = 1000  # so many checkpoints are all looked at, which takes 10 ms and finds a changed manifest in any of them
_MOST_UNKNOWN = 200  # more are looked at faster along with all others


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a list of names and the catalog say together."""

    listed: Mapping[str, Mapping[str, int]]  # run -> name -> inode number of each directory there
    # Where the newest checkpoints are, and those that the catalog does not know, with what is there now.
    published: dict[CheckpointKey, Stamp | None]
    unknown: set[CheckpointKey]  # those that the catalog does not know


def propose(
    context: Context,
    runs: OpenRuns,  # looks into the directories
    run: str | None,  # None: all runs
    *,
    newest: int,  # how many are wanted
    listed: Mapping[str, Mapping[str, int]] | None = None,
) -> Proposed | None:
    """Return where the newest so many checkpoints of a run, or of all, can be; None: all have to be looked at."""
    # The checkpoint whose manifest was written last is among them. `listed`: run -> name -> inode number of everything
    # that is there, where that is known.
    if context.shared:  # its inode numbers may be used again unseen by this host
        return None
    layout = context.layout
    if listed is None:
        listed = {name: layout.subdirectories(name) for name in (layout.runs() if run is None else [run])}
    if sum(map(len, listed.values())) <= FEW:
        return None
    try:
        found = context.catalog.propose(listed, newest=newest, run=run)
    except CatalogUnavailable:
        return None
    # A wrong row could hide that its checkpoint is the newest.
    if found.newest.wrong_count or len(found.unknown) > _MOST_UNKNOWN:
        return None
    published = {place: runs.stamp(*place) for place in (*found.newest.stamps, *found.unknown)}
    if any(published[place] != stamp for place, stamp in found.newest.stamps.items()):
        return None  # the checkpoint there may be older than others
    for place in context.known.distrusted.keys() - published.keys():  # its row may hide that it is the newest
        if str(place[1]) in listed.get(place[0], {}):
            published[place] = runs.stamp(*place)
    return Proposed(listed, published, found.unknown)
