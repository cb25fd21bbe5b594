"""What gc would do: the same questions that gc asks, without a change. Retention can be played through first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.fs import holders, lease, locks
from ckstore.model.digest import is_digest
from ckstore.model.gc_report import GcPlan, HeldBlob, LinkedBlob, NextToFree, PlannedBlob, explain
from ckstore.objects import trash
from ckstore.objects.collector import why_unasked
from ckstore.objects.layout import BLOBS
from ckstore.ops.context import tags_by_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from ckstore.ops.context import Context

Place = tuple[str, int]


class Names:
    """The names that blobs have in the store, but for those in checkpoints that the catalog knows and that stay."""

    def __init__(self, context: Context, dropping: Collection[Place] = ()) -> None:
        self._context = context
        self._dropping = dropping

    @cached_property
    def _folders(self) -> list[Path]:
        layout = self._context.layout
        found = [layout.staging / name for name in trash.names_in(layout.staging)]
        found += [layout.trash / name for name in trash.names_in(layout.trash)]
        known = self._context.catalog.listing()
        found += [
            layout.checkpoint(run, step)
            for run, step, inode in layout.published()
            if (run, step) in self._dropping or known.get((run, step)) != inode
        ]
        return found

    @cached_property
    def _loose(self) -> list[Path]:
        """Names of blobs beside ``blobs/``: temporary ones of saves at work, and condemned blobs in trash."""
        trashed = self._context.layout.trash
        found = [trashed / name for name in trash.names_in(trashed) if is_digest(name.partition(".")[0])]
        for folder in self._folders:
            if folder.is_dir():
                found += [folder / name for name in trash.names_in(folder) if name.startswith("new-")]
        return found

    def outside(self, digest: str) -> int:
        """Return how many names outside the store the canonical blob has; no checkpoint that stays uses it."""
        canonical = self._context.layout.blob(digest)
        inodes = [_inode(path) for path in (canonical, *(f / BLOBS / digest for f in self._folders), *self._loose)]
        if inodes[0] is None:
            return 0
        try:
            link_count = os.stat(canonical, follow_symlinks=False).st_nlink
        except FileNotFoundError:
            return 0
        return max(0, link_count - inodes.count(inodes[0]))


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


class _Going:
    """Blobs that lose names: for each inode how many names would go, of how many."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.found: dict[int, tuple[str, Path, os.stat_result]] = {}

    def add(self, digest: str, path: Path) -> None:
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return
        self.counts[status.st_ino] += 1
        self.found.setdefault(status.st_ino, (digest, path, status))

    def add_directory(self, path: Path) -> list[str]:
        """Add all blobs of a directory of a checkpoint; return their digests."""
        digests = [name for name in trash.names_in(path / BLOBS) if is_digest(name)]
        for digest in digests:
            self.add(digest, path / BLOBS / digest)
        return digests


def plan_gc(context: Context, dropping: Collection[Place] = ()) -> GcPlan:
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
        if path.is_dir() and not path.is_symlink():
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
    blobs, held = _sorted_out(going)
    linked = _linked(context, going, unused, dropping)
    return GcPlan(
        blobs=blobs,
        held=held,
        linked_elsewhere=linked,
        dead_stagings=tuple(stagings),
        trash=tuple(in_trash),
        dead_pack_bytes=context.catalog.dead_pack_bytes(dropping),
        explanation=explain(
            (len(blobs), sum(blob.nbytes for blob in blobs)),
            held,
            linked,
            None if blobs or held or linked else next_to_free(context),
            dry_run=True,
        ),
    )


def _is_free(path: Path) -> bool:
    lock = locks.try_exclusive(path)
    if lock is not None:
        lock.release()
    return lock is not None


def _sorted_out(going: _Going) -> tuple[tuple[PlannedBlob, ...], tuple[HeldBlob, ...]]:
    """Return the blobs that would lose their last name: those that would be freed, and those that are held."""
    last = sorted(found for inode, found in going.found.items() if going.counts[inode] == found[2].st_nlink)
    seen = holders.find_holders([(status.st_dev, status.st_ino) for _, _, status in last])
    blobs, held = [], []
    for digest, path, status in last:
        named = tuple(seen.holders.get((status.st_dev, status.st_ino), ()))
        if named or lease.ask(path) is not lease.Holding.FREE:
            held.append(HeldBlob(digest, status.st_size, named, why_unasked(path)))
        else:
            blobs.append(PlannedBlob(digest, status.st_size))
    return tuple(blobs), tuple(held)


def _linked(context: Context, going: _Going, unused: set[str], dropping: Collection[Place]) -> tuple[LinkedBlob, ...]:
    """Return the blobs without a use that would keep names outside the store."""
    names = Names(context, dropping)
    found = {}
    for inode, (digest, _, status) in going.found.items():
        if digest in unused and going.counts[inode] < status.st_nlink:
            count = names.outside(digest)
            if count:
                found[digest] = LinkedBlob(digest, status.st_size, count)
    return tuple(found[digest] for digest in sorted(found))


def next_to_free(context: Context) -> NextToFree:
    """Return the oldest checkpoint that is not the newest and has no tag, and what deleting it would free."""
    tagged = tags_by_checkpoint(context.layout)
    try:
        for info in context.catalog.infos()[:-1]:
            if (info.run, info.step) not in tagged:
                return NextToFree(info.name, context.catalog.exclusive_bytes(info.run, info.step))
    except CatalogUnavailable:  # it is only advice
        return NextToFree()
    return NextToFree()
