"""Enter checkpoints into the catalog, and find the runs whose checkpoints must be compared one by one.

A transaction enters many checkpoints, but few enough that no process waits long for the lock of the catalog. A run need
not be compared if its number of checkpoints in the catalog equals its number of subdirectories. The number of
subdirectories follows from the link count of the run's directory (docs/adr/0002-catalog.md).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.model.names import CheckpointKey
from ckstore.model.words import some_of
from ckstore.ops.api_calls import why_of
from ckstore.ops.context import Context
from ckstore.ops.notices import warn

if TYPE_CHECKING:
    from ckstore.model.manifest.info import Published, Stamp
    from ckstore.objects.checkpoints import Verdict

Note = Callable[[CheckpointKey, "Verdict"], None]

# A rebuild holds the lock for half a second at a time. A process that waits this long is blocked by something else.
TIMEOUT_S = 30.0
# The next opening of the store does what a call cannot do within this time.
_UPDATE_TIMEOUT_S = 5.0
# The maximum number of checkpoints in a transaction. SQLite keeps the pages of a transaction in memory until its end.
_BATCH_MOST = 256
# The maximum duration of a transaction, since tags and pins of other processes wait for the same lock.
_BATCH_S = 0.5


def reconcile_all(context: Context, keys: Iterable[CheckpointKey], note: Note | None = None) -> None:
    """Make the rows of checkpoints and tags match the directories, in several transactions.

    A transaction ends after half a second, so that another process that writes a tag or a pin waits no longer. If the
    process dies between two transactions, the next process that opens the store corrects the outdated catalog.

    Args:
        context: The store.
        keys: The checkpoints.
        note: Called with the verdict about each checkpoint. It must not use the catalog.
    """
    from ckstore.objects.checkpoints import look

    def look_at(key: CheckpointKey) -> Published | None:
        found = look(context.layout, key)
        if found.problem and not found.is_closed:
            context.notices.problems[key.name] = f"incomplete checkpoint, not changed: {found.problem}"
        if note is not None:
            note(key, found)
        return found.published

    waiting = deque(keys)
    while waiting:
        context.catalog.reconcile(_batch(waiting), look_at, timeout_s=TIMEOUT_S, tags=context.layout.tags)


def reconcile_one(context: Context, key: CheckpointKey, *, timeout_s: float) -> None:
    """Make the rows of one checkpoint match its directory; if they already match, the lock is not taken."""
    if not context.catalog_is_private and context.catalog.listing(places=[key]) == stamps(context, [key]):
        return
    from ckstore.objects.checkpoints import look

    def look_at(key: CheckpointKey) -> Published | None:
        return look(context.layout, key).published

    context.catalog.reconcile([key], look_at, timeout_s=timeout_s)


def update_row(context: Context, key: CheckpointKey) -> str:
    """Call `reconcile_one` after a change to a checkpoint, and return the reason if this fails, otherwise "".

    The change itself is complete. If the catalog cannot be written now, the next opening of the store updates it.
    """
    try:
        reconcile_one(context, key, timeout_s=_UPDATE_TIMEOUT_S)
    except (CkstoreError, OSError) as error:
        return why_of(error)
    return ""


def _batch(waiting: deque[CheckpointKey]) -> Iterator[CheckpointKey]:
    deadline = time.monotonic() + _BATCH_S
    for _ in range(_BATCH_MOST):
        yield waiting.popleft()
        # Check the time after a checkpoint, so that each batch has at least one checkpoint even if the disk is slow.
        if not waiting or time.monotonic() > deadline:
            return


def runs_in_doubt(context: Context) -> set[str]:
    """Return the runs whose checkpoints must be compared one by one, since their numbers differ or are unknown."""
    known = context.catalog.counts()
    runs = known.keys() | set(context.layout.runs())
    # A count of 0 means that the filesystem does not count subdirectories (btrfs, overlayfs).
    return {run for run in runs if not (count := context.layout.subdirectory_count(run)) or known.get(run) != count}


def stamps(context: Context, keys: Iterable[CheckpointKey]) -> dict[CheckpointKey, Stamp]:
    """Return the stamps of the keys that exist."""
    found = ((key, context.layout.stamp(key)) for key in keys)
    return {key: stamp for key, stamp in found if stamp is not None}


def chosen(context: Context, run: str, *, newest: int, off_every: int) -> dict[CheckpointKey, Stamp] | None:
    """Return the stamps of a run's newest checkpoints, and of those whose step is not a multiple of `off_every`.

    The catalog chooses the checkpoints, and their stamps are compared with the directories. Return None if the catalog
    cannot be trusted.
    """
    if context.catalog_is_private:
        return None
    try:
        if run in runs_in_doubt(context):
            return None
        listing = context.catalog.chosen(run, newest=newest, off_every=off_every)
    except CatalogUnavailable:  # the caller then reads the directories
        return None
    if listing.wrong_count or stamps(context, listing.stamps) != listing.stamps:
        return None
    return listing.stamps


_PROBLEM = "rows"
# A repair only helps later calls, so the current call does not wait long for it.
_MEND_TIMEOUT_S = 1.0


def remove(context: Context) -> list[str]:
    """Remove the rows that do not match their checksums; return notes for the user."""
    count = context.catalog.remove_wrong(timeout_s=TIMEOUT_S)
    return [_damaged(count)] if count else []


def write_again(context: Context, places: Collection[CheckpointKey], *, damaged_count: int = 0) -> None:
    """Write the rows of checkpoints again from their directories, and warn once per open store.

    If the rows cannot be written now, the next opening of the store corrects them.

    Args:
        context: The store.
        places: The checkpoints with wrong or missing rows.
        damaged_count: How many rows do not match their checksums. If 0, the rows of `places` match
            their checksums, but contradict the manifests.
    """
    if _PROBLEM not in context.notices.problems:
        if damaged_count:
            said = _damaged(damaged_count)
        else:
            named = some_of([key.name for key in sorted(places)], 3)
            said = f"the catalog and the manifest disagree about {named}; the manifest is used"
        context.notices.problems[_PROBLEM] = said
        warn(said)
    for place in () if damaged_count else places:
        # Also record the stamp. A checkpoint that is later saved to the same place has another stamp, so its row can be
        # trusted.
        context.known.distrusted[place] = context.layout.stamp(place)
    if context.readonly or context.writes_disabled_because:
        return
    try:
        if damaged_count:
            context.catalog.remove_wrong(timeout_s=_MEND_TIMEOUT_S)
        reconcile_all(context, sorted(places))
        for place in places:
            context.known.distrusted.pop(place, None)
    except (CkstoreError, OSError):  # the catalog cannot be written now, or a newer ckstore wrote a row
        return


def _damaged(count: int) -> str:
    rows = "1 row of the catalog is" if count == 1 else f"{count} rows of the catalog are"
    return f"{rows} damaged; reading the manifests instead"
