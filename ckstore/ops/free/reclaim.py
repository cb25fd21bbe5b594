"""Free the leftovers of failed and replaced saves and of deleted checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError, InsufficientSpace, UnknownOutcome
from ckstore.fs import files
from ckstore.model.names import CheckpointKey
from ckstore.objects import reserve, trash
from ckstore.objects.collector import Collector, EnterCandidates
from ckstore.ops.index.reconcile import reconcile_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckstore.fs.dirfd_stat import StorePath
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context

# This time is short, because the user waits, and the next gc continues the work.
_CATALOG_TIMEOUT_S = 2.0
_BATCH = 2048
"""The maximum number of blobs in a batch. Renaming this many blobs takes about as long as one scan of all processes."""


def abandon(context: Context, staging: Staging, error: BaseException, *, purge: bool = True) -> None:
    """Discard a staged save that failed with `error`, unless it may already be published."""
    if not isinstance(error, UnknownOutcome):
        discard(context, staging, error, purge=purge)
        return
    # The directory may be a published checkpoint, so it must not be removed. The next opener locks and inspects it.
    context.writes_disabled_because = error.message
    staging.lock.release()


def discard(context: Context, staging: Staging, error: BaseException | None = None, *, purge: bool = True) -> None:
    """Move the staging directory of a save that will not be published to trash, and free the blobs that only it used.

    On a shared filesystem, the directory is kept for the grace period, unless `error` means that the disk is full. In
    that case, the blobs that this save wrote are freed immediately: no reader on any host can have opened them, and
    other saves that use them have links of their own. On any other filesystem, if the disk is full, `purge` also frees
    dropped checkpoints that could still be restored, so that the next save fits.

    This function raises no `OSError`, which would hide the error that made the save fail. Leftovers remain in
    `staging/` or `trash/`, where the next opener or gc finds them. In a child that was forked during the save, this
    function does nothing, since the child does not have the lock.
    """
    if staging.lock.fd < 0:
        return
    try:
        moved = _moved(context, staging)
        # Release the reserve, since freeing data on a full disk needs some space.
        with reserve.given_up(context.layout, full=None if moved else True):
            moved = moved or trash.move_to_trash(context.layout, staging.path, staging.lock)
            staging.lock.release()
            if context.view.frees_at_once:
                free_unused(context, staging.written, purge=purge and is_full(error))
            elif is_full(error):
                _free_own(context, moved.name, staging.written)
    except OSError:  # gc frees it later
        return
    finally:
        staging.lock.release()


def _moved(context: Context, staging: Staging) -> StorePath | None:
    """Move a staging directory to trash. Return its new path, or None if the disk has no space for the rename."""
    # On a full btrfs filesystem, even a rename fails.
    try:
        return trash.move_to_trash(context.layout, staging.path, staging.lock)
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise
        return None


def free_unused(context: Context, digests: Iterable[str] = (), *, purge: bool = False) -> None:
    """Empty the trash, then free the unused blobs among `digests`, unless a collector is running.

    No error is raised, since the next gc frees the rest. On a shared filesystem, this function does nothing.
    """
    if not context.view.frees_at_once:
        return
    try:
        purge = purge and any(map(trash.can_return, trash.names_in(context.layout.trash)))
        write = catalog_writer(context, timeout_s=_CATALOG_TIMEOUT_S)
        collector = Collector.try_start(context.layout, write, purge=purge)
        if collector is None:
            return
        with collector:
            collector.empty()
            wanted = (collector.collected.entered if purge else set()).union(digests)
            if wanted:
                unused = [blob for blob in context.catalog.unused() if blob[0] in wanted]
                mark_for_deletion(context, collector, unused, timeout_s=_CATALOG_TIMEOUT_S)
    except (CkstoreError, OSError):  # the rest remains in trash or in the list of candidates
        return


def frees_undo(context: Context, error: BaseException) -> bool:
    """Whether rolling back a failed save also frees dropped checkpoints that could still be restored."""
    return is_full(error) and context.view.frees_at_once and trash.has_waiting(context.layout)


def is_full(error: BaseException | None) -> bool:
    """Whether an error means that the filesystem or a quota is full."""
    full = isinstance(error, OSError) and error.errno in files.NO_SPACE
    return full or isinstance(error, InsufficientSpace)


def _free_own(context: Context, name: str, written: Mapping[str, int]) -> None:
    """Remove the staging directory `name` of this process from trash, and free the blobs that its save wrote."""
    try:
        write = catalog_writer(context, timeout_s=_CATALOG_TIMEOUT_S)
        collector = Collector.try_start(context.layout, write, leases=False)
        if collector is None:
            return
        with collector:
            collector.empty([name])
            mark_for_deletion(context, collector, list(written.items()), timeout_s=_CATALOG_TIMEOUT_S)
    except CkstoreError:  # the catalog cannot be written on a full disk: gc frees the blobs after the grace period
        return


def catalog_writer(context: Context, *, timeout_s: float) -> EnterCandidates:
    """Return the function that updates the catalog. A collector calls it before it removes links to blobs."""

    def write(blobs: list[tuple[str, int]], key: CheckpointKey | None) -> None:
        if key is not None:
            reconcile_one(context, key, timeout_s=timeout_s)
        if blobs:
            context.catalog.add_candidates(blobs, timeout_s=timeout_s)

    return write


def mark_for_deletion(
    context: Context, collector: Collector, blobs: Sequence[tuple[str, int]], *, timeout_s: float
) -> None:
    """Free unused blobs (digest, size) in batches. Each batch uses the catalog and /proc only briefly."""
    blobs = sorted(blobs)  # so that blobs of one folder are adjacent
    for start in range(0, len(blobs), _BATCH):
        gone = collector.mark_for_deletion(blobs[start : start + _BATCH])
        if gone:
            context.catalog.forget(gone, timeout_s=timeout_s)
