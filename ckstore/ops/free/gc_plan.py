"""What gc would do: the same questions that gc asks, without a change. Retention can be played through first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ckstore.errors import CatalogUnavailable
from ckstore.fs import holders, lease, locks, peek
from ckstore.model.digest import is_digest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.gc_report import GcPlan, HeldBlob, NextToFree, PlannedBlob, explain
from ckstore.objects import trash
from ckstore.objects.collector import why_unasked
from ckstore.objects.layout import BLOBS
from ckstore.ops.context import tags_by_checkpoint
from ckstore.ops.free.external_links import linked_elsewhere

if TYPE_CHECKING:
    import os

    from ckstore.fs.inside import Inside
    from ckstore.ops.context import Context


class _Going:
    """Blobs that lose names: for each inode how many names would go, of how many."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.found: dict[int, tuple[str, Inside, os.stat_result]] = {}

    def add(self, digest: str, path: Inside) -> None:
        try:
            status = peek.status(path)
        except FileNotFoundError:
            return
        self.counts[status.st_ino] += 1
        self.found.setdefault(status.st_ino, (digest, path, status))

    def add_directory(self, path: Inside) -> list[str]:
        """Add all blobs of a directory of a checkpoint; return their digests."""
        digests = [name for name in trash.names_in(path / BLOBS) if is_digest(name)]
        for digest in digests:
            self.add(digest, path / BLOBS / digest)
        return digests


def plan_gc(context: Context, dropping: Collection[CheckpointKey] = ()) -> GcPlan:
    """Say what gc would free now, or after the checkpoints `dropping` (run, step) were dropped; change nothing.

    Raises:
        CatalogUnavailable: The catalog, which lists what may go, cannot be used.
    """
    layout = context.layout
    going = _Going()
    stagings = trash.dead_stagings(layout)
    leaving = [layout.staging / name for name in stagings]
    in_trash = []
    for name in trash.names_in(layout.trash):
        path = layout.trash / name
        if peek.is_directory(path):
            if _is_free(path):
                in_trash.append(name)
                leaving.append(path)
        else:
            in_trash.append(name)
            if is_digest(digest := name.partition(".")[0]):
                going.add(digest, path)
    leaving += [layout.checkpoint(run, step) for run, step in dropping]
    touched = {digest for path in leaving for digest in going.add_directory(path)}
    unused = {digest for digest, _ in context.catalog.unused()}
    unused |= context.catalog.without_use(touched - unused, without=dropping)
    for digest in unused:
        going.add(digest, layout.blob(digest))
    blobs, held, seen = _sorted_out(going, leases=not context.shared)
    sizes = {
        digest: status.st_size
        for inode, (digest, _, status) in going.found.items()
        if digest in unused and going.counts[inode] < status.st_nlink
    }
    linked = linked_elsewhere(context, sizes, dropping)
    return GcPlan(
        blobs=blobs,
        held=held,
        linked_elsewhere=linked,
        dead_stagings=tuple(stagings),
        trash=tuple(in_trash),
        dead_pack_bytes=context.catalog.dead_pack_bytes(dropping),
        unseen_processes=seen.unseen_count,
        explanation=explain(
            (len(blobs), sum(blob.nbytes for blob in blobs)),
            held,
            linked,
            None if blobs or held or linked else next_to_free(context),
            dry_run=True,
        ),
    )


def _is_free(path: Inside) -> bool:
    lock = locks.try_exclusive(path)
    if lock is not None:
        lock.release()
    return lock is not None


def _sorted_out(going: _Going, *, leases: bool) -> tuple[tuple[PlannedBlob, ...], tuple[HeldBlob, ...], holders.Scan]:
    """Return the blobs that would lose their last name: those that would be freed, and those that are held."""
    last = sorted(found for inode, found in going.found.items() if going.counts[inode] == found[2].st_nlink)
    seen = holders.find_holders([(status.st_dev, status.st_ino) for _, _, status in last])
    blobs, held = [], []
    for digest, path, status in last:
        named = tuple(seen.holders.get((status.st_dev, status.st_ino), ()))
        if named or (seen.blind and not leases) or (leases and lease.ask(path) is not lease.Holding.FREE):
            held.append(HeldBlob(digest, status.st_size, named, why_unasked(path)))
        else:
            blobs.append(PlannedBlob(digest, status.st_size))
    return tuple(blobs), tuple(held), seen


def next_to_free(context: Context) -> NextToFree:
    """Return the oldest checkpoint that is not the newest and has no tag, and what deleting it would free.

    Which is the oldest the catalog says; what it would free the link counts do.
    """
    tagged = tags_by_checkpoint(context.layout)
    try:
        listed = [*context.catalog.listing()]
    except CatalogUnavailable:  # it is only advice
        return NextToFree()
    for place in listed[:-1]:  # the last is the newest
        if place not in tagged:
            (freed,) = freed_in_turn(context, [place])
            return NextToFree(f"{place[0]}@{place[1]}", sum(nbytes for _, nbytes in freed))
    return NextToFree()


def freed_in_turn(context: Context, places: Iterable[CheckpointKey]) -> list[list[tuple[str, int]]]:
    """Return, for checkpoints that are dropped one after another, the blobs (digest, size) that go with each.

    The link counts say it: a blob goes with the last of the checkpoints that have it, unless it has another name.
    """
    names: Counter[int] = Counter()
    canonical: set[str] = set()
    freed = []
    for place in places:
        folder = context.layout.checkpoint(*place) / BLOBS
        gone = []
        for digest in filter(is_digest, trash.names_in(folder)):
            paths = [folder / digest, *([] if digest in canonical else [context.layout.blob(digest)])]
            canonical.add(digest)
            for path in paths:
                try:
                    status = peek.status(path)
                except FileNotFoundError:  # it had lost its canonical name, or is being freed
                    continue
                names[status.st_ino] += 1
                if names[status.st_ino] == status.st_nlink:
                    gone.append((digest, status.st_size))
        freed.append(gone)
    return freed
