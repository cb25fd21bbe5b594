"""What gc would do: the same questions that gc asks, without a change. Retention can be played through first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable
from ckstore.fs import locks, peek
from ckstore.model.digest import is_digest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.gc_report import GcPlan, NextToFree
from ckstore.model.reports.held import PlannedBlob
from ckstore.objects import trash
from ckstore.objects.last_names import Judge, LastName, NameCount, blobs_in
from ckstore.objects.layout import BLOBS
from ckstore.ops.context import tags_by_checkpoint
from ckstore.ops.free.external_links import linked_elsewhere

if TYPE_CHECKING:
    from ckstore.ops.context import Context


def plan_gc(context: Context, dropping: Collection[CheckpointKey] = ()) -> GcPlan:
    """Say what gc would free now, or after the checkpoints `dropping` (run, step) were dropped; change nothing."""
    layout = context.layout
    going, judge = NameCount(), Judge(leases=not context.shared)
    stagings = trash.dead_stagings(layout)
    leaving = [layout.staging / name for name in stagings]
    in_trash: list[str] = []
    touched: set[str] = set()
    for name in trash.names_in(layout.trash):
        path = layout.trash / name
        if not peek.is_directory(path):
            in_trash.append(name)
            if is_digest(digest := name.partition(".")[0]):
                touched.add(digest)
                going.add(digest, path)
        elif (lock := locks.try_exclusive(path)) is not None:
            lock.release()
            in_trash.append(name)
            leaving.append(path)
    leaving += [layout.checkpoint(*key) for key in dropping]
    touched.update(digest for path in leaving for digest in going.add_checkpoint(path))
    unused = {digest for digest, _ in context.catalog.unused()}
    unused |= context.catalog.without_use(touched - unused, without=dropping)
    for digest in unused:
        going.add(digest, layout.blob(digest))
    lasts = going.lasts()
    seen = judge.look_for(lasts)
    held: list[LastName] = []
    free: list[LastName] = []
    for last in lasts:
        (held if judge.is_held(last, seen) else free).append(last)
    linked = linked_elsewhere(context, going.linked(unused), dropping)
    idle = not (free or held or linked)
    return GcPlan(
        blobs=tuple(PlannedBlob(last.digest, last.status.st_size) for last in free),
        held=tuple(judge.held(last, seen) for last in held),
        linked_elsewhere=linked,
        dead_stagings=tuple(stagings),
        trash=tuple(in_trash),
        dead_pack_bytes=context.catalog.dead_pack_bytes(dropping),
        unseen_processes=judge.unseen_count,
        next_to_free=next_to_free(context) if idle else None,
        waits_for_grace=bool(context.shared),
    )


def next_to_free(context: Context) -> NextToFree | None:
    """Return what deleting the oldest checkpoint would free that is not the newest and has no tag; None: there is none.

    Which is the oldest the catalog says; what it would free the link counts do.
    """
    tagged = tags_by_checkpoint(context.layout)
    try:
        listed = [*context.catalog.listing()]
    except CatalogUnavailable:  # it is only advice
        return None
    for key in listed[:-1]:  # the last is the newest
        if key not in tagged:
            (freed,) = freed_in_turn(context, [key])
            return NextToFree(f"{key[0]}@{key[1]}", sum(nbytes for _, nbytes in freed))
    return None


def freed_in_turn(context: Context, keys: Iterable[CheckpointKey]) -> list[list[tuple[str, int]]]:
    """Return, for checkpoints that are dropped one after another, the blobs (digest, size) that go with each.

    The link counts say it: a blob goes with the last of the checkpoints that have it, unless it has another name.
    """
    going = NameCount()
    canonical: set[str] = set()
    freed = []
    for key in keys:
        folder = context.layout.checkpoint(*key)
        gone = []
        for digest, there in blobs_in(folder / BLOBS):
            lasts = [going.add(digest, folder / BLOBS / digest, there)]
            if digest not in canonical:  # that name may be lost, or is being freed
                canonical.add(digest)
                lasts.append(going.add(digest, context.layout.blob(digest)))
            gone += [(digest, last.st_size) for last in lasts if last is not None]
        freed.append(gone)
    return freed
