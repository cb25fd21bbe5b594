"""Scan ``blobs/`` for unused blobs, for missing names of used blobs, and for separate copies in checkpoints.

A power cut can restore names that were removed. Therefore ``blobs/`` is listed once after each start of the machine,
and whenever the catalog is rebuilt. gc also lists it if other hosts or users have their own catalogs. ``blobs/`` is not
listed at every opening, because the cost grows with the store (about a second for 100,000 blobs).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import StorePath, with_open_parents
from ckstore.model.digest import fan_out, is_digest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.reindex_report import Incomplete
from ckstore.objects.layout import Layout
from ckstore.objects.trash import names_in
from ckstore.ops.context import Context

if TYPE_CHECKING:
    from ckstore.objects.checkpoints import Verdict

CANDIDATES_BATCH = 5000  # how many blobs are entered in one transaction


def canonical_blobs(layout: Layout) -> Iterator[StorePath]:
    """Yield every file in ``blobs/`` that is named like a blob and is in the right folder."""
    for fan in names_in(layout.blobs):
        folder = layout.blobs / fan
        if dirfd_stat.is_directory(folder):
            names: list[str] = []
            with suppress(PermissionError):  # the folder of another user is listed when that user opens the store
                names = names_in(folder)
            yield from (folder / name for name in names if is_digest(name) and fan_out(name) == fan)


def list_blobs(context: Context, *, timeout_s: float) -> int:
    """Enter every unused blob in ``blobs/`` as a candidate for gc; return the number of unused blobs."""
    count = 0
    batch: list[StorePath] = []
    for path in canonical_blobs(context.layout):
        # Enter the blobs in batches, since each transaction holds the lock that tags and pins need.
        batch.append(path)
        if len(batch) >= CANDIDATES_BATCH:
            count += _enter(context, batch, timeout_s)
            batch = []
    return count + _enter(context, batch, timeout_s)


def _enter(context: Context, paths: list[StorePath], timeout_s: float) -> int:
    if not paths:
        return 0
    # Query the catalog first, since the files of used blobs need not be inspected.
    without_use = context.catalog.without_use([path.name for path in paths])
    unused = []
    for digest, path in with_open_parents((path.name, path) for path in paths if path.name in without_use):
        with suppress(FileNotFoundError):  # another process freed the blob meanwhile
            unused.append((digest, dirfd_stat.status(path).st_size))
    if unused:
        context.catalog.add_candidates(unused, timeout_s=timeout_s)
    return len(unused)


@dataclass(slots=True)
class _Use:
    """A blob that complete checkpoints name: its size, the number of these checkpoints, and the first of them."""

    nbytes: int
    count: int
    place: CheckpointKey


@dataclass
class StoreInventory:
    """Counts checkpoints and blobs; call `note` for each checkpoint, and then `look_at_blobs` once."""

    layout: Layout
    places: set[CheckpointKey] = field(default_factory=set)  # complete checkpoints
    incomplete: list[Incomplete] = field(default_factory=list)  # directories that are not complete checkpoints
    # Blobs in ``blobs/`` that no complete checkpoint names, and their sizes.
    orphans: dict[str, int] = field(default_factory=dict)
    # Number and size of the blobs in checkpoints that are separate files instead of links to the file in ``blobs/``.
    copy_count: int = 0
    copy_bytes: int = 0
    _uses: dict[str, _Use] = field(default_factory=dict)
    _lost: list[str] = field(default_factory=list)

    def note(self, key: CheckpointKey, found: Verdict) -> None:
        """Count one checkpoint and its blobs."""
        if found.problem:
            self.incomplete.append(Incomplete(*key.run_step, found.problem))
        if found.published is None:
            return
        self.places.add(key)
        for blob in found.published.local_files:
            use = self._uses.setdefault(blob.digest, _Use(blob.nbytes, 0, key))
            use.count += 1

    def look_at_blobs(self) -> None:
        """Compare ``blobs/`` with the blobs that the checkpoints name; no data is read."""
        # The canonical file has one link for its canonical name and one link for each checkpoint that shares the file.
        # Every further checkpoint that names the blob has a separate copy.
        lost = set(self._uses)
        for _, path in with_open_parents((None, blob) for blob in canonical_blobs(self.layout)):
            try:
                status = dirfd_stat.status(path)
            except FileNotFoundError:  # freed in the meantime
                continue
            use = self._uses.get(path.name)
            if use is None:
                self.orphans[path.name] = status.st_size
                continue
            lost.discard(path.name)
            # The 1 stands for the canonical name. Links outside the store may make the difference negative.
            copies = max(0, use.count + 1 - status.st_nlink)
            self.copy_count += copies
            self.copy_bytes += copies * use.nbytes
        self._lost = sorted(lost)

    def restore_names(self) -> int:
        """Restore lost canonical names, and return how many were restored."""
        from ckstore.objects.heal import restore_names  # an opening does not need it

        by_place: defaultdict[CheckpointKey, list[tuple[str, int]]] = defaultdict(list)
        for digest in self._lost:
            use = self._uses[digest]
            # Group the names by checkpoint, so that each checkpoint is locked only once.
            by_place[use.place].append((digest, use.nbytes))
        return sum(
            len(restore_names(self.layout, self.layout.checkpoint(place), lost)) for place, lost in by_place.items()
        )

    @property
    def blob_count(self) -> int:
        """The number of blobs that complete checkpoints name."""
        return len(self._uses)

    @property
    def blob_bytes(self) -> int:
        """The total size in bytes of the blobs that complete checkpoints name."""
        return sum(use.nbytes for use in self._uses.values())

    def orphans_in_parts(self, count: int) -> Iterator[list[tuple[str, int]]]:
        """Yield lists of at most `count` orphans (digest, size)."""
        listed = sorted(self.orphans.items())
        for start in range(0, len(listed), count):
            yield listed[start : start + count]
