"""Give back what a failed or replaced save took, and what a deleted checkpoint leaves."""

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

    from ckstore.fs.store_path import StorePath
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context

# The user waits for it, and what is not done now gc does.
_CATALOG_TIMEOUT_S = 2.0
_BATCH = 2048
"""A look at all processes takes about as long as to rename so many."""


def abandon(context: Context, staging: Staging, error: BaseException, *, purge: bool = True) -> None:
    """End what was staged after `error`: discard it, unless it may be published."""
    if not isinstance(error, UnknownOutcome):
        discard(context, staging, error, purge=purge)
        return
    # Taking its directory apart could destroy a checkpoint. The next opener, under its lock, looks.
    context.writes_disabled_because = error.message
    staging.lock.release()


def discard(context: Context, staging: Staging, error: BaseException | None = None, *, purge: bool = True) -> None:
    """Move a save that will not be published to trash and free what only it needed, as far as that works now.

    Where other hosts may be at work it stays for the grace, unless `error` says that the disk is full: no reader of any
    host has ever had what this save wrote itself, and the links that saves made to it keep the bytes. With `purge` a
    full disk also takes what could be brought back, for the next save.

    What does not work stays in `staging/` or `trash/`, where the next opener or gc finds it: an error here must not
    hide the one that made the save fail. A child that was forked in the middle of a save has lost the lock, and leaves
    the save to its parent.
    """
    if staging.lock.fd < 0:
        return
    try:
        moved = _moved(context, staging)
        with reserve.given_up(context.layout, full=None if moved else True):  # it frees what filled the disk
            moved = moved or trash.move_to_trash(context.layout, staging.path, staging.lock)
            staging.lock.release()
            if not context.shared:
                free_unused(context, staging.written, purge=purge and is_full(error))
            elif is_full(error):
                _free_own(context, moved.name, staging.written)
    except OSError:  # gc does it
        return
    finally:
        staging.lock.release()


def _moved(context: Context, staging: Staging) -> StorePath | None:
    """Move a save to trash; None: that needs space, too, as on btrfs."""
    try:
        return trash.move_to_trash(context.layout, staging.path, staging.lock)
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise
        return None


def free_unused(context: Context, digests: Iterable[str] = (), *, purge: bool = False) -> None:
    """Empty the trash, then free the unused ones of the blobs `digests`; unless a collector is running."""
    # Whatever does not work now is left for gc, without an error; so is everything where other hosts may be at work.
    if context.shared:
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
    except (CkstoreError, OSError):  # what is left stays in trash or in the list of candidates
        return


def frees_undo(context: Context, error: BaseException) -> bool:
    """Whether the end of a save that failed frees what could be brought back, for the next one."""
    return is_full(error) and not context.shared and trash.has_waiting(context.layout)


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that the filesystem, or a quota, is full."""
    full = isinstance(error, OSError) and error.errno in files.NO_SPACE
    return full or isinstance(error, InsufficientSpace)


def _free_own(context: Context, name: str, written: Mapping[str, int]) -> None:
    """Take apart one entry of trash, the staging of a save of this process, and free the blobs that it wrote itself."""
    try:
        write = catalog_writer(context, timeout_s=_CATALOG_TIMEOUT_S)
        collector = Collector.try_start(context.layout, write, leases=False)
        if collector is None:
            return
        with collector:
            collector.empty([name])
            mark_for_deletion(context, collector, list(written.items()), timeout_s=_CATALOG_TIMEOUT_S)
    except CkstoreError:  # the catalog cannot be written on a full disk: gc frees it after the grace
        return


def catalog_writer(context: Context, *, timeout_s: float) -> EnterCandidates:
    """Return what a collector calls with the blobs that it is about to take a name from, and where they were."""

    def write(blobs: list[tuple[str, int]], key: CheckpointKey | None) -> None:
        if key is not None:
            reconcile_one(context, key, timeout_s=timeout_s)
        if blobs:
            context.catalog.add_candidates(blobs, timeout_s=timeout_s)

    return write


def mark_for_deletion(
    context: Context, collector: Collector, blobs: Sequence[tuple[str, int]], *, timeout_s: float
) -> None:
    """Free blobs (digest, size) without a use, in batches: each needs the catalog, and /proc, for a short time only."""
    blobs = sorted(blobs)  # those of one folder together
    for start in range(0, len(blobs), _BATCH):
        gone = collector.mark_for_deletion(blobs[start : start + _BATCH])
        if gone:
            context.catalog.forget(gone, timeout_s=timeout_s)
