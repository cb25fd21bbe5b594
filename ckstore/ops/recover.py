"""What opening a store for writing sets right: dead saves go to trash, the catalog catches up with the directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.errors import CkstoreError, InUse, NewerFormat
from ckstore.fs import links
from ckstore.objects import reserve, trash
from ckstore.objects.checkpoints import look
from ckstore.ops import reclaim
from ckstore.ops.relist import list_blobs_after_boot

if TYPE_CHECKING:
    from ckstore.model.published import Published
    from ckstore.ops.context import Context

_TIMEOUT_S = 30.0


def recover(context: Context) -> list[str]:
    """Sweep dead stagings, adopt what was published, empty the trash; return what the user should know.

    Called twice, or by several processes at once, it does no harm.

    Raises:
        NewerFormat: The catalog was written by a newer ckstore.
        OSError: The system refused; the store is as it was or further on the way.
    """
    notes: list[str] = []
    for directory in context.layout.directories:  # a copy may have left out empty ones
        links.make_directory(directory)
    trash.sweep_staging(context.layout)
    try:
        notes += catch_up(context)
        list_blobs_after_boot(context, timeout_s=_TIMEOUT_S)
    except NewerFormat:
        raise
    except (CatalogUnavailable, InUse) as error:
        notes.append(f"the catalog is left aside for now: {error.message}")
    reclaim.give_back(context)
    reserve.fill(context.layout)
    return notes


def catch_up(context: Context) -> list[str]:
    """Make the catalog equal to the directories; a damaged one is set aside and made anew.

    Returns:
        What the user should know.

    Raises:
        CatalogUnavailable, InUse: The catalog cannot be used now.
        NewerFormat: It was written by a newer ckstore.
    """
    try:
        _reconcile(context)
    except CatalogUnavailable as error:
        if error.why != "damaged":
            raise
        aside = context.catalog.set_aside(timeout_s=_TIMEOUT_S)
        _reconcile(context)
        where = f"; the old one is {aside}" if aside else ""
        return [f"the catalog was damaged and is made anew from the directories{where}"]
    return []


def _reconcile(context: Context) -> None:
    context.catalog.create_or_migrate(timeout_s=_TIMEOUT_S)
    listing = context.catalog.listing()
    published = {(run, step): inode for run, step, inode in context.layout.published()}
    stale = sorted(key for key in listing.keys() | published.keys() if listing.get(key) != published.get(key))

    def look_at(run: str, step: int) -> Published | None:
        found = look(context.layout, run, step)
        if found.problem:
            context.problems[f"{run}@{step}"] = f"not a whole checkpoint, left alone: {found.problem}"
        return found.published

    if stale:
        context.catalog.reconcile(stale, look_at, timeout_s=_TIMEOUT_S, tags=context.layout.tags)
    else:
        context.catalog.replace_tags(context.layout.tags(), timeout_s=_TIMEOUT_S)


def try_recover(context: Context) -> list[str]:
    """As `recover`; on a place where this process cannot write, say so instead."""
    try:
        return recover(context)
    except CkstoreError:
        raise
    except OSError as error:
        return [f"recovery at opening did not work: {error.strerror} ({error.filename})"]
