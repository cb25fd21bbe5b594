"""Which blobs have names outside the store, while savers and readers make and move names inside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ckstore.fs import peek
from ckstore.model.digest import is_digest
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.held import LinkedBlob
from ckstore.objects import trash
from ckstore.objects.last_names import NameCount
from ckstore.objects.layout import BLOBS

if TYPE_CHECKING:
    from ckstore.fs.inside import Inside
    from ckstore.ops.context import Context

_LOOKS = 5


def linked_elsewhere(
    context: Context, sizes: Mapping[str, int], dropping: Collection[CheckpointKey] = ()
) -> tuple[LinkedBlob, ...]:
    """Return those of some blobs that no checkpoint uses and that have names outside the store.

    A save at work makes names and moves them, so one look may miss a name on its way. A count is believed when two
    looks, one after the other, found the same directories and the same counts; while the store is too busy for that
    nothing is said, and the next gc looks again. The checkpoints `dropping` are looked at as if they were gone.
    """
    if not sizes:
        return ()
    seen = None
    for _ in range(_LOOKS):
        unused = context.catalog.without_use(set(sizes), without=dropping)
        names = _Names(context, dropping)
        counts = {digest: count for digest in sorted(unused) if (count := names.outside(digest)) > 0}
        if not counts:
            return ()
        if seen == (names.listing, counts):
            return tuple(LinkedBlob(digest, sizes[digest], count) for digest, count in counts.items())
        seen = (names.listing, counts)
    return ()


class _Names:
    """The names that blobs have in the store, but for those in checkpoints that the catalog knows and that stay."""

    def __init__(self, context: Context, dropping: Collection[CheckpointKey]) -> None:
        layout = self._layout = context.layout
        known = context.catalog.listing()
        self.listing = (
            tuple(layout.staging / name for name in trash.names_in(layout.staging)),
            tuple(layout.trash / name for name in trash.names_in(layout.trash)),
            tuple(
                layout.checkpoint(run, step)
                for (run, step), stamp in layout.stamps().items()
                if (run, step) in dropping or known.get((run, step)) != stamp
            ),
        )

    @cached_property
    def _loose(self) -> list[Inside]:
        """Names of blobs beside ``blobs/``: temporary ones of saves at work, and condemned blobs in trash."""
        stagings, trashed, unknown = self.listing
        found = [path for path in trashed if is_digest(path.name.partition(".")[0])]
        for folder in (*stagings, *trashed, *unknown):
            if peek.is_directory(folder):
                found += [folder / name for name in trash.names_in(folder) if name.startswith("new-")]
        return found

    def outside(self, digest: str) -> int:
        """Return how many names outside the store the canonical blob has; no checkpoint that stays uses it."""
        canonical = self._layout.blob(digest)
        inside = [folder / BLOBS / digest for folders in self.listing for folder in folders]
        names = NameCount()
        for path in (canonical, *inside, *self._loose):
            names.add(digest, path)
        found = peek.find(canonical)
        return 0 if found is None else max(0, found.st_nlink - names.counts[found.st_dev, found.st_ino])
