"""Make the catalog equal to the directories, and rebuild one that is missing, older or damaged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

from ckstore.errors import CatalogUnavailable
from ckstore.fs.host import machine
from ckstore.interpreter import python_gc_paused
from ckstore.model.manifest.info import Stamp
from ckstore.model.names import CheckpointKey
from ckstore.ops.context import Context
from ckstore.ops.index import facts, reconcile
from ckstore.ops.index.catalog_place import refuse_foreign
from ckstore.ops.index.reconcile import TIMEOUT_S, reconcile_all, runs_in_doubt
from ckstore.ops.index.scan_blobs import list_blobs

Look = Literal["all", "names", "counts"]


def catch_up(context: Context, look: Look = "all") -> list[str]:
    """Make the catalog equal to the directories; rebuild one that is missing or damaged from them."""
    # After a start of the machine every checkpoint is compared, and the blobs are listed, too (`ops/index/scan_blobs`).
    # `look`: ``all``: Compare every checkpoint. ``names``: Compare the names and inode numbers of all, and look into
    # those that differ. ``counts``: Compare those of runs that are in doubt (`ops/index/reconcile`), so that it costs
    # what is to be done; a process that removes what was dropped or replaced looks at its place. Where other hosts or
    # users have catalogs of their own, all are compared. Returns: what the user should know.
    try:
        return _reconcile(context, look)
    except CatalogUnavailable as error:
        return mend(context, error)


def mend(context: Context, error: CatalogUnavailable) -> list[str]:
    """Mend what is wrong with the file of the catalog, and make it equal to the directories."""
    # `error`: what the catalog said, before anything came of it. Returns: What the user should know. Nothing of a new
    # store, and of a host or user that is new to one that others use, too.
    begun_s = time.monotonic()
    is_new = not any(context.layout.published())  # looked at first: others save as soon as there is a catalog
    # Only what is damaged: one that is behind is migrated, and one of a newer ckstore is kept.
    aside = context.catalog.set_aside(timeout_s=TIMEOUT_S) if error.why == "damaged" else None
    made = context.catalog.create_or_migrate(timeout_s=TIMEOUT_S)
    # Before rows are written: a catalog_path of another store would mix two stores.
    refuse_foreign(context.catalog)
    said = _reconcile(context, "all")
    if not made:  # another process was faster, or is rebuilding it at this moment
        return said
    if error.why == "behind":
        return ["Brought the catalog, which an older ckstore made, up to date"]
    count, _ = context.catalog.count_and_sequence()
    if error.why == "missing" and (context.catalog_is_private or is_new or not count):
        return []
    checkpoints = "1 checkpoint" if count == 1 else f"{count:,} checkpoints"
    took_s = time.monotonic() - begun_s
    if aside is None:
        return [f"Rebuilt the catalog from {checkpoints} in {took_s:.3g} s: it was missing"]
    return [f"Rebuilt the catalog from {checkpoints} in {took_s:.3g} s; the old files are {aside}*: {error.message}"]


def _reconcile(context: Context, look: Look) -> list[str]:
    """Make the rows equal to the directories; return what the user should know."""
    by_name = _differing_by_name(context) if look == "names" else None
    # On a shared filesystem link counts may be old, so every checkpoint is compared.
    runs = runs_in_doubt(context) if look == "counts" and not context.shared else None
    with python_gc_paused():  # some small objects for each checkpoint, and nothing waits
        known = context.catalog.outline(rows=by_name is None and (runs is None or bool(runs)))
        if known.listing.wrong_count:  # of which checkpoints they were is not known
            runs = None
        stale = _differing(context, known.listing.stamps, runs) if by_name is None else by_name
    notes = reconcile.remove(context) if known.listing.wrong_count else []
    if context.shared or (look != "counts" and context.catalog_is_private):
        # Other users' catalogs do not tell this one of a replacement, and a new directory can have the inode of the
        # old one.
        stale |= _replaced(context)
    if stale:
        reconcile_all(context, sorted(stale))
    elif (tags := context.layout.tags()) != known.tags:
        context.catalog.replace_tags(tags, timeout_s=TIMEOUT_S)
    # Where the kernel does not say which start this is, it is done once, as after one start.
    if known.blobs_listed != machine.boot_id():
        list_blobs(context, timeout_s=TIMEOUT_S)
        context.catalog.note_blobs_listed(machine.boot_id(), timeout_s=TIMEOUT_S)
    return notes


def _differing_by_name(context: Context) -> set[CheckpointKey] | None:
    """Return the places whose names or inode numbers the catalog does not have; None: compare every checkpoint."""
    # Every one is compared where they are few, at the first opening after a start of the machine, when a power cut may
    # have undone what the catalog knows, and where the rows of the newest are not right.
    if context.shared or context.catalog_is_private:
        return None
    # The rows of a save may be undone by a power cut (docs/adr/0002), and only a start of the machine follows one.
    if context.catalog.outline(rows=False).blobs_listed != machine.boot_id():
        return None
    runs = context.known.directories.look(context.layout)
    if sum(len(one.published) for one in runs.values()) <= facts.FEW:
        return None
    found = context.catalog.propose({run: one.names for run, one in runs.items()}, newest=1)
    newest = found.newest
    if newest.wrong_count or any(context.layout.stamp(place) != stamp for place, stamp in newest.stamps.items()):
        return None
    published = {place for one in runs.values() for place in found.unknown if place in one.published}
    return published | found.missing


def _differing(context: Context, listing: Mapping[CheckpointKey, Stamp], runs: set[str] | None) -> set[CheckpointKey]:
    """Return the places of these runs, or of all, of which the catalog does not say what is there."""
    if runs is None:
        published = context.layout.stamps()
    else:
        published = {place: stamp for run in runs for place, stamp in context.layout.stamps(run).items()}
    known = listing if runs is None else {place: stamp for place, stamp in listing.items() if place.run in runs}
    return set() if known == published else {place for place, _ in known.items() ^ published.items()}


def _replaced(context: Context) -> set[CheckpointKey]:
    """Return the directories that hold another checkpoint than the catalog says, also with the same inode number."""
    from ckstore.objects.checkpoints import id_at

    known = {info.key: info.id for info in context.catalog.infos()}
    return {place for place, known_id in known.items() if id_at(context.layout.checkpoint(place)) != known_id}
