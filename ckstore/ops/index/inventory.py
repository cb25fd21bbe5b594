"""What a look at every checkpoint, and then at ``blobs/``, shows of a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckstore.fs import peek
from ckstore.fs.held import through_parents
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.reindex_report import Incomplete
from ckstore.objects.heal import restore_names
from ckstore.ops.index.scan_blobs import canonical_blobs

if TYPE_CHECKING:
    from ckstore.objects.checkpoints import Verdict
    from ckstore.objects.layout import Layout


@dataclass(slots=True)
class _Use:
    """A blob that complete checkpoints name: its size, how many do, and the first of them."""

    nbytes: int
    count: int
    place: CheckpointKey


@dataclass
class StoreInventory:
    """Counts, as `note` is called for each checkpoint and then `look_at_blobs` once."""

    layout: Layout
    places: set[CheckpointKey] = field(default_factory=set)  # complete checkpoints, by run and step
    incomplete: list[Incomplete] = field(default_factory=list)  # directories that are not complete checkpoints
    # Blobs in ``blobs/`` that no complete checkpoint names, and their sizes.
    orphans: dict[str, int] = field(default_factory=dict)
    # `copy_count` and `copy_bytes`: Names in checkpoints that are files of their own.
    copy_count: int = 0
    copy_bytes: int = 0
    _uses: dict[str, _Use] = field(default_factory=dict)
    _lost: list[str] = field(default_factory=list)

    def note(self, run: str, step: int, found: Verdict) -> None:
        """Count what was found at one place."""
        if found.problem:
            self.incomplete.append(Incomplete(run, step, found.problem))
        if found.published is None:
            return
        self.places.add((run, step))
        for blob in found.published.manifest.stored:
            if blob.digest in found.published.elsewhere:
                continue
            use = self._uses.setdefault(blob.digest, _Use(blob.nbytes, 0, (run, step)))
            use.count += 1

    def look_at_blobs(self) -> None:
        """Compare ``blobs/`` with what the checkpoints name; no data is read."""
        # An inode has as many links as the store has names for it, so what the canonical one has too few are copies.
        lost = set(self._uses)
        for _, path in through_parents((None, blob) for blob in canonical_blobs(self.layout)):
            try:
                status = peek.status(path)
            except FileNotFoundError:  # freed meanwhile
                continue
            use = self._uses.get(path.name)
            if use is None:
                self.orphans[path.name] = status.st_size
                continue
            lost.discard(path.name)
            # + 1: the canonical name. A name outside the store makes it negative, and is no copy.
            copies = max(0, use.count + 1 - status.st_nlink)
            self.copy_count += copies
            self.copy_bytes += copies * use.nbytes
        self._lost = sorted(lost)

    def restore_names(self) -> int:
        """Give blobs that lost their canonical name that name again; return how many have it."""
        by_place: defaultdict[CheckpointKey, list[tuple[str, int]]] = defaultdict(list)
        for digest in self._lost:
            use = self._uses[digest]
            # By checkpoint: each is locked once for all names that it can give.
            by_place[use.place].append((digest, use.nbytes))
        return sum(
            len(restore_names(self.layout, self.layout.checkpoint(*place), lost)) for place, lost in by_place.items()
        )

    @property
    def blob_count(self) -> int:
        """Blobs that complete checkpoints name, each once."""
        return len(self._uses)

    @property
    def blob_bytes(self) -> int:
        """Their sizes."""
        return sum(use.nbytes for use in self._uses.values())

    def orphans_in_parts(self, count: int) -> Iterator[list[tuple[str, int]]]:
        """Yield the orphans (digest, size), at most `count` at once."""
        listed = sorted(self.orphans.items())
        for start in range(0, len(listed), count):
            yield listed[start : start + count]
