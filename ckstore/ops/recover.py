"""What opening a store for writing sets right: dead saves go to trash, the catalog catches up with the directories."""

from __future__ import annotations

import errno
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.errors import CkstoreError, InUse, NewerFormat
from ckstore.fs import files, links, place
from ckstore.objects import reserve, trash
from ckstore.objects.checkpoints import id_at
from ckstore.ops import create, in_step, reclaim, wrong_rows
from ckstore.ops.catalog_place import refuse_foreign
from ckstore.ops.entering import TIMEOUT_S, Place, enter
from ckstore.ops.failing import describe_os_error
from ckstore.ops.relist import BLOBS_LISTED, list_blobs_after_boot
from ckstore.ops.warn import warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckstore.model.published import Stamp
    from ckstore.ops.context import Context


def recover(context: Context) -> list[str]:
    """Sweep dead stagings, adopt what was published, empty the trash; return what the user should know.

    Called twice, or by several processes at once, it does no harm.

    Raises:
        NewerFormat: The catalog was written by a newer ckstore.
        UnsafePlace: The filesystem cannot do what a store needs.
        OSError: The system refused; the store is as it was or further on the way.
    """
    notes: list[str] = []
    layout = context.layout
    try:
        for directory in layout.directories:  # a copy may have left out empty ones
            links.make_directory(directory)
        with _unless_full():
            place.check_able(layout.root, layout.directories, layout.staging, layout.linked)
    finally:
        _make_store_durable(context)
    if not context.shared:  # else a save of another host, whose lock is not seen from here, would be swept away
        trash.sweep_staging(layout)  # who takes apart what was swept makes it durable first (rule F)
    place.remove_leftovers(layout.staging, layout.linked)
    said: list[str] = []
    try:
        said = catch_up(context)
    except NewerFormat:
        raise
    except (CatalogUnavailable, InUse) as error:
        notes.append(_left_aside(context, error))
    reclaim.give_back(context)
    reserve.fill(layout)
    create.remove_leftovers(layout)
    for note in said:
        warn(note)
    return said + notes


def _make_store_durable(context: Context) -> None:
    """Make the store's name and those in it durable, whoever made them: no checkpoint is more durable (rule F).

    Raises:
        OSError: That did not work; this process must not write to the store.
    """
    try:
        files.sync_directory(context.layout.root)
        files.sync_name(context.layout.path)
    except OSError as error:
        context.broken = f"{context.layout.root} could not be made durable: {error.strerror}"
        raise


@contextmanager
def _unless_full() -> Iterator[None]:
    """Go on when there is no room to try anything: gc must work on a full disk, and tries the same sooner or later."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _left_aside(context: Context, error: CkstoreError) -> str:
    if reserve.is_full(context.layout):
        return f"the filesystem of {context.layout.root} is full, so the catalog is left aside; ckstore gc frees space"
    return f"the catalog is left aside for now: {error.message}"


def catch_up(context: Context, *, whole: bool = True) -> list[str]:
    """Make the catalog equal to the directories; rebuild one that is missing or damaged from them.

    After a start of the machine the blobs are listed, too (`ckstore.ops.relist`).

    Args:
        context: The store.
        whole: Compare every checkpoint. False: those of runs that are in doubt (`ckstore.ops.in_step`), so that it
            costs what is to be done; whoever takes apart what was dropped or replaced looks at its place.

    Returns:
        What the user should know.

    Raises:
        CatalogUnavailable, InUse: The catalog cannot be used now.
        NewerFormat: It was written by a newer ckstore.
        BadInput: It is that of another store.
    """
    try:
        return _reconcile(context, whole=whole)
    except CatalogUnavailable as error:
        return mend(context, error)


def mend(context: Context, error: CatalogUnavailable) -> list[str]:
    """Mend what is wrong with the file of the catalog, and make it equal to the directories.

    Args:
        context: The store.
        error: What the catalog said, before anything came of it.

    Returns:
        What the user should know. Nothing of a new store, and of a host or user that is new to one
        that others use, too.

    Raises:
        CatalogUnavailable, InUse, NewerFormat, BadInput: As `catch_up`.
    """
    begun_s = time.monotonic()
    aside = context.catalog.set_aside(timeout_s=TIMEOUT_S) if error.why == "damaged" else None
    made = context.catalog.create_or_migrate(timeout_s=TIMEOUT_S)
    refuse_foreign(context.catalog)
    said = _reconcile(context, whole=True)
    if not made:  # another process was faster, or is rebuilding it at this moment
        return said
    if error.why == "behind":
        return ["Brought the catalog, which an older ckstore made, up to date"]
    count, _ = context.catalog.count_and_sequence()
    if error.why == "missing" and (context.catalog_is_private or not count):
        return []
    checkpoints = "1 checkpoint" if count == 1 else f"{count:,} checkpoints"
    took_s = time.monotonic() - begun_s
    if aside is None:
        return [f"Rebuilt the catalog from {checkpoints} in {took_s:.3g} s: it was missing; only past events are lost"]
    return [f"Rebuilt the catalog from {checkpoints} in {took_s:.3g} s; the old files are {aside}*: {error.message}"]


def _reconcile(context: Context, *, whole: bool) -> list[str]:
    """Make the rows equal to the directories; return what the user should know."""
    runs = None if whole or context.shared else in_step.runs_in_doubt(context)
    notes: list[str] = []
    known = context.catalog.outline(BLOBS_LISTED, rows=runs is None or bool(runs))
    if known.listing.wrong_count:  # of which checkpoints they were is not known
        runs, notes = None, wrong_rows.remove(context)
    stale = _differing(context, known.listing.stamps, runs)
    if context.shared or (whole and context.catalog_is_private):
        stale |= _replaced(context)
    if stale:
        enter(context, sorted(stale))
    elif (tags := context.layout.tags()) != known.tags:
        context.catalog.replace_tags(tags, timeout_s=TIMEOUT_S)
    list_blobs_after_boot(context, known.event, timeout_s=TIMEOUT_S)
    return notes


def _differing(context: Context, listing: Mapping[Place, Stamp], runs: set[str] | None) -> set[Place]:
    """Return the places of these runs, or of all, of which the catalog does not say what is there."""
    published: dict[Place, Stamp | None] = {}
    for run in context.layout.runs():
        if runs is None or run in runs:
            published.update(context.layout.stamps(run))
    known = listing if runs is None else {place: stamp for place, stamp in listing.items() if place[0] in runs}
    return set() if known == published else {place for place, _ in known.items() ^ published.items()}


def _replaced(context: Context) -> set[Place]:
    """Return the checkpoints that others replaced, also where the new directory has the old inode number."""
    known = {(info.run, info.step): info.id for info in context.catalog.infos()}
    return {place for place, known_id in known.items() if id_at(context.layout.checkpoint(*place)) != known_id}


def try_recover(context: Context) -> list[str]:
    """As `recover`; on a place where this process cannot write, say so instead."""
    try:
        return recover(context)
    except CkstoreError:
        raise
    except OSError as error:
        return [f"recovery at opening did not work: {describe_os_error(error)}"]
