"""Enter checkpoints into the catalog, many in one transaction, few enough that no process waits long for its lock.

And say where the catalog can be believed without a look at every checkpoint: where the link count of a run's directory,
which counts its subdirectories, is what the catalog counts (docs/adr/0002-catalog.md).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.model.names import CheckpointKey
from ckstore.model.words import some_of
from ckstore.ops.context import Context
from ckstore.ops.notices import warn

if TYPE_CHECKING:
    from ckstore.model.manifest.info import Published, Stamp
    from ckstore.objects.checkpoints import Verdict

Note = Callable[[CheckpointKey, "Verdict"], None]

# A rebuild holds the lock for half a second at a time, so a process that waits longer waits for something else.
TIMEOUT_S = 30.0
# The transaction keeps its pages in memory until it ends.
_BATCH_MOST = 256
# Half a second: tags and pins of other processes wait for the same lock.
_BATCH_S = 0.5


def reconcile_all(context: Context, keys: Iterable[CheckpointKey], note: Note | None = None) -> None:
    """Make the rows of checkpoints equal to their directories, one transaction after another, and the tags."""
    # A batch ends after half a second, so that a tag or a pin of another process waits no longer than that. A process
    # that dies in between leaves a catalog that is behind, which the next opener corrects. `note`: called with what was
    # found at each place; it must not use the catalog.
    from ckstore.objects.checkpoints import look

    def look_at(key: CheckpointKey) -> Published | None:
        found = look(context.layout, key)
        if found.problem and not found.is_closed:
            context.notices.problems[key.name] = f"incomplete checkpoint, left alone: {found.problem}"
        if note is not None:
            note(key, found)
        return found.published

    waiting = deque(keys)
    while waiting:
        context.catalog.reconcile(_batch(waiting), look_at, timeout_s=TIMEOUT_S, tags=context.layout.tags)


def reconcile_one(context: Context, key: CheckpointKey, *, timeout_s: float) -> None:
    """Make the rows of one checkpoint equal to its directory; a row that is right already takes no lock."""
    if not context.catalog_is_private and context.catalog.listing(places=[key]) == stamps(context, [key]):
        return
    from ckstore.objects.checkpoints import look

    def look_at(key: CheckpointKey) -> Published | None:
        return look(context.layout, key).published

    context.catalog.reconcile([key], look_at, timeout_s=timeout_s)


def _batch(waiting: deque[CheckpointKey]) -> Iterator[CheckpointKey]:
    deadline = time.monotonic() + _BATCH_S
    for _ in range(_BATCH_MOST):
        yield waiting.popleft()
        # After a checkpoint, not before: each batch does at least one, however slow the disk is.
        if not waiting or time.monotonic() > deadline:
            return


def runs_in_doubt(context: Context) -> set[str]:
    """Return the runs whose checkpoints must be compared one by one, since their number differs or is not known."""
    known = context.catalog.counts()
    runs = known.keys() | set(context.layout.runs())
    # 0: the filesystem does not count subdirectories (btrfs, overlayfs), so the count says nothing.
    return {run for run in runs if not (count := context.layout.subdirectory_count(run)) or known.get(run) != count}


def stamps(context: Context, keys: Iterable[CheckpointKey]) -> dict[CheckpointKey, Stamp]:
    """Return which checkpoint each key has, where there is one."""
    found = ((key, context.layout.stamp(key)) for key in keys)
    return {key: stamp for key, stamp in found if stamp is not None}


def chosen(context: Context, run: str, *, newest: int, off_every: int) -> dict[CheckpointKey, Stamp] | None:
    """Return places with stamps: the newest so many of a run, and all whose step `off_every` does not divide."""
    # None: the catalog does not say it. Each place has the checkpoint that it names.
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
    if _PROBLEM not in context.notices.problems:
        said = _damaged(damaged_count) if damaged_count else _forged(places)
        context.notices.problems[_PROBLEM] = said
        warn(said)
    for place in () if damaged_count else places:
        # With the stamp: a checkpoint that is saved there later has a row of its own, which counts.
        context.known.distrusted[place] = context.layout.stamp(place)
    if context.readonly or context.writes_disabled_because:
        return
    try:
        if damaged_count:
            context.catalog.remove_wrong(timeout_s=_MEND_TIMEOUT_S)
        reconcile_all(context, sorted(places))
        for place in places:
            context.known.distrusted.pop(place, None)
    except (CkstoreError, OSError):  # the catalog cannot be written now, or a newer ckstore wrote one of them
        return


def _damaged(count: int) -> str:
    rows = "1 row of the catalog is" if count == 1 else f"{count} rows of the catalog are"
    return f"{rows} damaged; reading the manifests instead"


def _forged(places: Collection[CheckpointKey]) -> str:
    named = some_of([key.name for key in sorted(places)], 3)
    return f"the catalog and the manifest disagree about {named}; the manifest counts"
