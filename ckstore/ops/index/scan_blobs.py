"""Find blobs in ``blobs/`` that the catalog does not know: a power cut can bring names back that were removed.

So the directories are listed once for each start of the machine, and whenever the catalog is rebuilt. The cost grows
with the store (about a second for 100,000 blobs), hence not at every opening.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ckstore.fs import peek
from ckstore.fs.held import through_parents
from ckstore.fs.host import machine
from ckstore.fs.inside import Inside
from ckstore.model.digest import fan_out, is_digest
from ckstore.objects.layout import Layout
from ckstore.objects.trash import names_in
from ckstore.ops.context import Context

CANDIDATES_BATCH = 5000  # blobs that are entered in one transaction


def note_listed(context: Context, *, timeout_s: float) -> None:
    """Take note that every blob was looked at since the machine started."""
    # Raises CatalogUnavailable, InUse: the catalog cannot be used; it is done by the next opener.
    context.catalog.note_blobs_listed(machine.boot_id(), timeout_s=timeout_s)


def canonical_blobs(layout: Layout) -> Iterator[Inside]:
    """Yield everything in ``blobs/`` that has the name of a blob at its place."""
    for fan in names_in(layout.blobs):
        folder = layout.blobs / fan
        if peek.is_directory(folder):
            names: list[str] = []
            with suppress(PermissionError):  # another user's: their opening lists it
                names = names_in(folder)
            yield from (folder / name for name in names if is_digest(name) and fan_out(name) == fan)


def list_blobs(context: Context, *, timeout_s: float) -> int:
    """Enter every blob in ``blobs/`` that no checkpoint uses as a candidate for gc; return how many there are."""
    count = 0
    batch: list[Inside] = []
    for path in canonical_blobs(context.layout):
        # In batches: each transaction holds the lock that tags and pins need.
        batch.append(path)
        if len(batch) >= CANDIDATES_BATCH:
            count += _enter(context, batch, timeout_s)
            batch = []
    return count + _enter(context, batch, timeout_s)


def _enter(context: Context, paths: list[Inside], timeout_s: float) -> int:
    if not paths:
        return 0
    # Asked first: a blob that is in use needs no look at its file.
    without_use = context.catalog.without_use([path.name for path in paths])
    unused = []
    for digest, path in through_parents((path.name, path) for path in paths if path.name in without_use):
        with suppress(FileNotFoundError):  # another process freed it meanwhile
            unused.append((digest, peek.status(path).st_size))
    if unused:
        context.catalog.add_candidates(unused, timeout_s=timeout_s)
    return len(unused)
