"""Make the catalog match the directories, and repair or rebuild a missing, damaged or older catalog."""

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
    """Make the catalog match the directories, rebuilding it if it is missing or damaged; return notes for the user.

    After a start of the machine, the blobs are also listed (`ops/index/scan_blobs`).

    Args:
        context: The store.
        look: ``all`` compares every checkpoint. ``names`` compares all names and inode numbers, and inspects the
            checkpoints that differ. After a start of the machine, or if other hosts or users have their own catalogs,
            ``names`` compares every checkpoint. ``counts`` compares only the checkpoints of runs in doubt
            (`ops/index/reconcile`), so that the cost depends on the number of changes. On a shared filesystem,
            ``counts`` also compares every checkpoint. ``counts`` suffices for gc, which checks each checkpoint before
            removing it.
    """
    try:
        return _reconcile(context, look)
    except CatalogUnavailable as error:
        return mend(context, error)


def mend(context: Context, error: CatalogUnavailable) -> list[str]:
    """Repair or create the catalog, and make it match the directories; return notes for the user.

    There are no notes if the store is new, or if this host or user uses a shared store for the first time. `error` is
    the error of the catalog.
    """
    begun_s = time.monotonic()
    # Check for checkpoints before the catalog exists, since other processes save as soon as it exists.
    is_new = not any(context.layout.published())
    # Only a damaged catalog is renamed. A catalog of an older ckstore is migrated, and one of a newer ckstore is kept.
    aside = context.catalog.set_aside(timeout_s=TIMEOUT_S) if error.why == "damaged" else None
    made = context.catalog.create_or_migrate(timeout_s=TIMEOUT_S)
    # Check the owner before rows are written, since rows of two stores would be mixed if catalog_path were that of
    # another store.
    refuse_foreign(context.catalog)
    said = _reconcile(context, "all")
    if not made:  # another process has rebuilt the catalog, or is rebuilding it
        return said
    if error.why == "behind":
        return ["Updated the catalog, which an older ckstore had created"]
    count, _ = context.catalog.count_and_sequence()
    if error.why == "missing" and (context.catalog_is_private or is_new or not count):
        return []
    checkpoints = "1 checkpoint" if count == 1 else f"{count:,} checkpoints"
    took_s = time.monotonic() - begun_s
    if aside is None:
        return [f"Rebuilt the catalog from {checkpoints} in {took_s:.3g} s, because it was missing"]
    return [f"Rebuilt the catalog from {checkpoints} in {took_s:.3g} s. The old files are {aside}*: {error.message}"]


def _reconcile(context: Context, look: Look) -> list[str]:
    """Make the rows match the directories; return notes for the user."""
    by_name = _differing_by_name(context) if look == "names" else None
    # On a shared filesystem, link counts may be outdated, so every checkpoint is compared.
    runs = runs_in_doubt(context) if look == "counts" and context.view.sees_changes else None
    with python_gc_paused():  # this creates some small objects for each checkpoint, but no garbage
        known = context.catalog.outline(rows=by_name is None and (runs is None or bool(runs)))
        if known.listing.wrong_count:  # it is unknown which checkpoints the damaged rows belong to
            runs = None
        stale = _differing(context, known.listing.stamps, runs) if by_name is None else by_name
    notes = reconcile.remove(context) if known.listing.wrong_count else []
    if not context.view.sees_changes or (look != "counts" and context.catalog_is_private):
        from ckstore.objects.checkpoints import id_at

        # If another user or host has replaced a checkpoint, this catalog was not updated, and the new directory may
        # have the inode number of the old directory. Therefore compare the ids.
        known_ids = {info.key: info.id for info in context.catalog.infos()}
        stale |= {key for key, known_id in known_ids.items() if id_at(context.layout.checkpoint(key)) != known_id}
    if stale:
        reconcile_all(context, sorted(stale))
    elif (tags := context.layout.tags()) != known.tags:
        context.catalog.replace_tags(tags, timeout_s=TIMEOUT_S)
    # Without a boot id from the kernel, the blobs are listed only once.
    if known.blobs_listed != machine.boot_id():
        list_blobs(context, timeout_s=TIMEOUT_S)
        context.catalog.note_blobs_listed(machine.boot_id(), timeout_s=TIMEOUT_S)
    return notes


def _differing_by_name(context: Context) -> set[CheckpointKey] | None:
    """Return the checkpoints that differ from the catalog by name or inode number, or None to compare all."""
    # All checkpoints are compared in these cases: other hosts or users have their own catalogs, there are few
    # checkpoints, this is the first opening after a start of the machine, or the rows of the newest checkpoints are
    # wrong.
    if not context.view.sees_changes or context.catalog_is_private:
        return None
    runs = context.known.directories.look(context.layout)
    if sum(len(one.published) for one in runs.values()) <= facts.FEW:
        return None
    # A power cut may undo the rows of a save (docs/adr/0002), so compare all after a start of the machine.
    if context.catalog.outline(rows=False).blobs_listed != machine.boot_id():
        return None
    found = context.catalog.propose({run: one.names for run, one in runs.items()}, newest=1)
    newest = found.newest
    if newest.wrong_count or any(context.layout.stamp(place) != stamp for place, stamp in newest.stamps.items()):
        return None
    published = {place for one in runs.values() for place in found.unknown if place in one.published}
    return published | found.missing


def _differing(context: Context, listing: Mapping[CheckpointKey, Stamp], runs: set[str] | None) -> set[CheckpointKey]:
    """Return the checkpoints whose directories differ from the catalog, in `runs` or, if None, in all runs."""
    if runs is None:
        published = context.layout.stamps()
    else:
        published = {place: stamp for run in runs for place, stamp in context.layout.stamps(run).items()}
    known = listing if runs is None else {place: stamp for place, stamp in listing.items() if place.run in runs}
    return set() if known == published else {place for place, _ in known.items() ^ published.items()}
