"""Rebuild the catalog from the directories, which are authoritative, and rename the old catalog.

The new catalog is filled in batches. Until it is complete, readers, savers and gc read the directories of checkpoints
that are not in the catalog yet. If the process dies, the next process that opens the store completes the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ckstore.errors import CkstoreError, InsufficientSpace
from ckstore.fs import dirfd_stat, links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.host import machine
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.progress import Progress
from ckstore.model.reports.reindex_report import ReindexReport, RelinkReport
from ckstore.model.sizes import needed_and_free
from ckstore.objects import trash
from ckstore.objects.checkpoints import Verdict
from ckstore.objects.documents.annotations import read_annotations
from ckstore.objects.documents.pins import read_pins
from ckstore.objects.layout import MANIFEST
from ckstore.objects.relink import Relinker
from ckstore.objects.staging import Staging
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim
from ckstore.ops.index.reconcile import TIMEOUT_S, reconcile_all
from ckstore.ops.index.scan_blobs import CANDIDATES_BATCH, StoreInventory, canonical_blobs
from ckstore.ops.open.opening import recover
from ckstore.ops.refs.protection import doubtful_tags, way_out

_MARGIN_BYTES = 2**20


def reindex(context: Context, *, relink: bool = False, progress: Progress | None = None) -> ReindexReport:
    """Rebuild the catalog; see `ckstore.Store.reindex`."""
    context.check_writable()
    layout = context.layout
    links.make_missing(layout.directories)  # a copy of a store may lack empty directories
    # Check the space before the old catalog is renamed, since an old catalog is better than a partial one on a full
    # disk.
    _check_space(context)
    places = sorted(key for key, _ in layout.published())
    shown = _ReindexProgress(context, places, progress, relink=relink)
    # Relink before the blobs are counted, so that the report has the resulting link counts.
    relinked = _relink(context, shown.blob_bytes) if relink else None
    # The old catalog is renamed under the lock of writers, so that no process writes to it any more. It is kept so that
    # users can inspect it.
    old = context.catalog.replace(timeout_s=TIMEOUT_S)
    census = StoreInventory(layout)

    def note(key: CheckpointKey, found: Verdict) -> None:
        census.note(key, found)
        shown.manifest_of(key)

    # Checkpoints are entered in batches, so that saves of other processes can continue meanwhile.
    reconcile_all(context, places, note)
    census.look_at_blobs()
    restored_count = census.restore_names()
    for part in census.orphans_in_parts(CANDIDATES_BATCH):
        context.catalog.add_candidates(part, timeout_s=TIMEOUT_S)
    context.catalog.note_blobs_listed(machine.boot_id(), timeout_s=TIMEOUT_S)
    report = _report(context, census, restored_count, "" if old is None else str(old), relinked)
    recover(context)  # this also enters the tags, even if there is no checkpoint
    return report


def _relink(context: Context, report: Callable[[int], None]) -> RelinkReport:
    """Link all names of each blob to one file again, in all checkpoints.

    The old files are moved to trash, and freed if no process has them open.

    Raises:
        OSError: The system refused an operation. Finished work remains, and the store is as sound as before. The old
            files remain in ``staging/`` until the next sweep, since their replacements may not be durable.
    """
    staging = Staging.create(context.layout, trash.RELINKING, None)
    try:
        relinker = Relinker(context.layout, staging.path, report)
        places = sorted(key for key, _ in context.layout.published())
        for key in places:
            relinker.checkpoint(key)
        if relinker.found_damage:  # an intact copy may be in a later checkpoint than the damaged copies
            for key in places:
                relinker.checkpoint(key)
    except BaseException:
        staging.lock.release()
        raise
    # Discard the old files only after success, since after an error they may be the only durable copies.
    reclaim.discard(context, staging)
    done = relinker.done
    return RelinkReport(done.checked_bytes, done.relinked_count, done.spare_bytes, tuple(sorted(done.damaged)))


def _check_space(context: Context) -> None:
    """Raise if there is no room for a second catalog, since gc cannot free space on a full disk without a catalog."""
    path = context.catalog.path
    try:
        wanted_bytes = os.stat(path, follow_symlinks=False).st_size + _MARGIN_BYTES
    except FileNotFoundError:  # there is no old catalog that could be lost
        return
    free_bytes = dirfd_stat.free_space(path.parent).free_bytes
    if wanted_bytes > free_bytes:
        msg = (
            f"the new catalog needs, in addition to the old one, about {needed_and_free(wanted_bytes, free_bytes)} on "
            f"the filesystem of {path.parent}. Nothing was changed"
        )
        raise InsufficientSpace(msg, hint="free space first with ckstore gc, or move a catalog.db.old-N away")


class _ReindexProgress:
    """Adds up the bytes that were read, to report progress."""

    def __init__(
        self, context: Context, places: list[CheckpointKey], progress: Progress | None, *, relink: bool
    ) -> None:
        self._progress = progress
        self._sizes: dict[CheckpointKey, int] = {}
        self._blob_bytes = self._manifest_bytes = self._all_bytes = 0
        if progress is None:
            return
        self._sizes = {place: _size(context.layout.checkpoint(place) / MANIFEST) for place in places}
        self._all_bytes = sum(self._sizes.values())
        if relink:  # the sum is an upper bound, since blobs that are linked correctly are not read
            self._all_bytes += sum(_size(path) for path in canonical_blobs(context.layout))

    def blob_bytes(self, done_bytes: int) -> None:
        """Record how many bytes of blobs were read."""
        self._blob_bytes = done_bytes
        self._tell()

    def manifest_of(self, key: CheckpointKey) -> None:
        """Record that a manifest was read."""
        self._manifest_bytes += self._sizes.get(key, 0)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            done_bytes = self._blob_bytes + self._manifest_bytes
            self._progress(done_bytes, max(self._all_bytes, done_bytes))


def _size(path: StorePath) -> int:
    found = dirfd_stat.find(path)
    return 0 if found is None else found.st_size


def _report(
    context: Context, census: StoreInventory, restored_count: int, old_catalog: str, relinked: RelinkReport | None
) -> ReindexReport:
    tags = context.layout.tags()
    problems = [
        f"the tag {name} names {key.name}, which does not exist"
        for name, key in sorted(tags.items())
        if key not in {place.any_generation for place in census.places}
    ]
    doubtful = doubtful_tags(context.layout).items()
    problems += [f"{problem}, so nothing is dropped; {way_out(name)}" for name, problem in doubtful]
    pin_count = 0
    try:
        pin_count = len(read_pins(context.layout))
    except CkstoreError as error:
        problems.append(f"a pin cannot be read, so nothing is dropped: {error}")
    problems += _bad_annotations(context, census.places)
    return ReindexReport(
        checkpoint_count=len(census.places),
        blob_count=census.blob_count,
        blob_bytes=census.blob_bytes,
        orphan_count=len(census.orphans),
        orphan_bytes=sum(census.orphans.values()),
        restored_count=restored_count,
        copy_count=census.copy_count,
        copy_bytes=census.copy_bytes,
        tag_count=len(tags),
        pin_count=pin_count,
        incomplete=tuple(census.incomplete),
        problems=tuple(problems),
        old_catalog=old_catalog,
        relinked=relinked,
    )


def _bad_annotations(context: Context, places: set[CheckpointKey]) -> list[str]:
    problems = []
    for key in sorted(places):
        try:
            read_annotations(context.layout.checkpoint(key))
        except (CkstoreError, OSError) as error:
            problems.append(f"the annotations of {key.name} cannot be read: {error}")
    return problems
