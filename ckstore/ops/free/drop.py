"""Drop a checkpoint, which moves it to trash durably, and delete a checkpoint, which also frees its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from ckstore.errors import CkstoreError, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import dirfd_stat, files, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.lock_holders import named_holders
from ckstore.model.digest import is_digest
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.objects import reserve, store_locks, trash
from ckstore.objects.checkpoints import id_at, look
from ckstore.objects.documents.annotations import read_annotations
from ckstore.objects.generations import other_generations
from ckstore.objects.layout import BLOBS, Layout, RunChange
from ckstore.ops import events
from ckstore.ops.config_file import UNDO_BY_HAND_S, setting_of
from ckstore.ops.context import Context
from ckstore.ops.free import reclaim
from ckstore.ops.index.reconcile import update_row
from ckstore.ops.notices import warn
from ckstore.ops.refs.evaluations import check_not_evaluated
from ckstore.ops.refs.find import AnyRef, find, torn_at
from ckstore.ops.refs.protection import check_unprotected, gone

# The time to wait for the lock of the run. A save holds this lock while it checks the checkpoint that it replaces.
_RUN_TIMEOUT_S = 10.0
_UNFREED = "unfreed"
_HOW = "ckstore gc --exclusive, gc(exclusive=True) in Python"


@dataclass(frozen=True, slots=True)
class DropOutcome:
    """The result of dropping a checkpoint."""

    digests: tuple[str, ...]  # the blobs in the directories of the checkpoint
    catalogued: bool  # whether the catalog was updated; if not, the next opener updates it


def delete(context: Context, ref: AnyRef, *, dry_run: bool = False, now: bool = False) -> None:
    """Delete a checkpoint durably. The blobs that only it used are freed when the deletion can no longer be undone.

    With `now`, the deletion cannot be undone. With `dry_run`, only raise the error that a deletion would raise.
    """
    try:
        info = find(context, ref)
    except (DamagedBlob, NoSuchRef):
        # No ref finds an incomplete checkpoint, but it must be possible to delete one.
        torn = torn_at(context, ref)
        if not torn:
            raise
        _delete_torn(context, torn, dry_run=dry_run, now=now)
        return
    if dry_run:
        check_droppable(context, info)
        return
    context.check_writable()
    with reserve.given_up(context.layout):
        make_kept_durable(context, info.run)
        dropped = drop(context, info, "by hand", 0 if now else _undo_by_hand_s(context))
        # If the catalog was not updated, the next opener updates it, and gc frees the blobs.
        if dropped.catalogued:
            reclaim.free_unused(context, dropped.digests)
    if note := tell_unfreed(context):
        warn(note)


def _delete_torn(context: Context, keys: Sequence[CheckpointKey], *, dry_run: bool, now: bool) -> None:
    """Delete directories that hold no complete checkpoint."""
    if dry_run:
        for key in keys:
            check_unprotected(context, key)
        return
    context.check_writable()
    with reserve.given_up(context.layout):
        for key in keys:
            digests = drop_torn(context, key, 0 if now else _undo_by_hand_s(context))
            events.note(context, "dropped", key.run_step, why="by hand; it was incomplete")
            if not update_row(context, key):
                reclaim.free_unused(context, digests)


def drop_torn(
    context: Context, key: CheckpointKey, undo_s: float = 0, *, protected: bool = True, by_hand: bool = True
) -> list[str]:
    """Move a directory that holds no complete checkpoint to trash durably, and return the digests of its blobs.

    Args:
        context: The store.
        key: The directory.
        undo_s: For how many seconds the deletion can be undone.
        protected: Whether a tag or a pin protects the directory.
        by_hand: Whether a user named the directory. If not, the directory is kept if it holds a checkpoint of another
            step or store.

    Raises:
        InUse, Protected: A process has the directory open, or a tag or a pin names it.
        NoSuchRef: The directory was removed or replaced in the meantime, or holds a complete checkpoint.
    """
    layout, path = context.layout, context.layout.checkpoint(key)
    try:
        run_lock = store_locks.lock_run(layout, key.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S)
    except FileNotFoundError:
        raise _gone(key) from None
    with run_lock:
        lock = locks.try_exclusive(path)
        if lock is None and not dirfd_stat.is_directory(path):
            raise _gone(key)
        if lock is None:
            raise InUse(f"{key.name} is open", hint="close it in the process that has it open, then delete again")
        with lock:
            found = look(layout, key, lock=lock)
            if found.published is not None or (found.is_another and not by_hand):
                raise NoSuchRef(
                    f"{key.name} was repaired or replaced in the meantime", hint="inspect it, then delete it again"
                )
            if protected:
                check_unprotected(context, key)
            run_lock.check()
            digests = [name for name in trash.names_in(path / BLOBS) if is_digest(name)]
            trash.move_to_trash(layout, path, lock, undo_s=undo_s if context.has_undo else 0)
        for folder in (layout.trash, path.parent):
            files.sync_directory(folder)
    context.known.directories.changed(key, None, None)
    return digests


def _gone(key: CheckpointKey) -> NoSuchRef:
    return NoSuchRef(f"{key.name} no longer exists", hint="ckstore log lists the checkpoints")


def _undo_by_hand_s(context: Context) -> float:
    try:
        return setting_of(context.layout, UNDO_BY_HAND_S)
    except (CkstoreError, OSError):
        if context.view.frees_at_once:
            raise
        return UNDO_BY_HAND_S.default  # opening the store reported that the settings cannot be read


def tell_unfreed(context: Context) -> str:
    """Return a note that dropped data is kept for the grace period.

    Return "" if dropped data is not kept, or if this open store has already returned the note.

    This host cannot see the locks, open files and catalogs of other hosts. On a shared filesystem, files that another
    host may use are therefore not unlinked immediately. They remain in ``staging/`` and ``trash/`` for a grace period
    (`ckstore.objects.shared.grace`), or until a user runs gc with `exclusive` because no other host uses the store.
    """
    if context.view.frees_at_once or _UNFREED in context.notices.problems:
        return ""
    context.notices.problems[_UNFREED] = (
        f"dropped checkpoints keep their data for the grace period (config.grace_s). "
        f"Other hosts may use the store: {context.view.other_hosts}. Later, gc frees it. "
        f"To free it at once, if no other host uses the store: {_HOW}"
    )
    return context.notices.problems[_UNFREED]


def make_kept_durable(context: Context, run: str) -> None:
    """Make the checkpoints of a run durable before older ones are dropped in favor of them (law R1)."""
    for parent in (context.layout.checkpoints / run, context.layout.checkpoints, context.layout.staging):
        files.sync_directory(parent)


def check_droppable(context: Context, info: CheckpointInfo) -> None:
    """Raise the error that `drop` would raise now, for example because the checkpoint is in use, tagged or pinned."""
    with ExitStack() as held:
        held.enter_context(_taken(info, context.layout.checkpoint(info.key)))
        check_unprotected(context, info.key, info)
        check_not_evaluated(context, info)
        _others_taken(context.layout, info, held)


def drop(
    context: Context,
    info: CheckpointInfo,
    why: str,
    undo_s: float = 0,
    last: Callable[[locks.DirectoryLock], None] | None = None,
    *,
    is_former_form: bool = False,
    durable: bool = True,
    catalogue: bool = True,
) -> DropOutcome:
    """Move a checkpoint to trash durably, unless it is in use, tagged or pinned. Call `make_kept_durable` first.

    The drop can be undone for `undo_s`, or for the grace period on a shared filesystem. Other generations of the
    checkpoint are also moved to trash, since otherwise one of them would take its place. They cannot be restored.

    Args:
        context: The store.
        info: The checkpoint.
        why: The reason, for the log of events.
        undo_s: For how many seconds the drop can be undone.
        last: Called right before the rename, with the exclusive lock of the directory.
        is_former_form: Whether to move only this generation, because a later one of the same checkpoint is published.
            Tags and pins then belong to the later generation.
        durable: Whether to fsync. Without fsync, and after an `OSError`, the checkpoint may reappear after a power cut.
        catalogue: Whether to update the rows of the catalog. If False, the caller must update them.
    """
    layout = context.layout
    path = layout.checkpoint(info.key)
    with ExitStack() as held:
        # Lock the run first, as saves do: between its inspection of a step and its rename, a save relies on unchanged
        # checkpoints of that step.
        try:
            run_lock = held.enter_context(
                store_locks.lock_run(layout, info.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S)
            )
        except FileNotFoundError:
            raise gone(info) from None
        lock = held.enter_context(_taken(info, path))
        if not is_former_form:
            check_unprotected(context, info.key, info)
            check_not_evaluated(context, info)
        # Since the ref was resolved, another process may have dropped the checkpoint and moved another directory to its
        # name.
        if id_at(path) != info.id:
            raise gone(info)
        others = [] if is_former_form else _others_taken(layout, info, held)
        if last is not None:
            last(lock)
        run_lock.check()
        metrics = _metrics_of(layout, info)
        names = [trash.names_in(one.inside / BLOBS) for one in (lock, *(one for _, one in others))]
        digests = dict.fromkeys(name for of_one in names for name in of_one if is_digest(name))
        # Move the other generations first: if the process dies in between, the checkpoint itself is unchanged.
        for key, other in others:
            with suppress(FileNotFoundError):  # another process has just moved it
                trash.move_to_trash(layout, layout.checkpoint(key), other)
            context.known.directories.changed(key, None, None)
        try:
            # Check the lock right before the rename: a restarted lock service may have granted it to another host.
            run_lock.check()
            before = layout.run_stamp(info.run)
            trash.move_to_trash(layout, path, lock, undo_s=undo_s if context.has_undo else 0)
            change = RunChange(before, layout.run_stamp(info.run))
        except FileNotFoundError:  # another process has just moved it
            raise gone(info) from None
        run_lock.release()  # release it before the fsyncs, so that saves need not wait for the disk
        # Sync the new parent first: if a power cut removed both names, gc would not find the blobs.
        for folder in (layout.trash, path.parent) if durable else ():
            files.sync_directory(folder)
    context.known.directories.changed(info.key, None, change)
    if not is_former_form:
        events.note(context, "dropped", info.key.run_step, id=info.id, why=why, metrics=metrics)
    keys = (info.key, *(key for key, _ in others))
    return DropOutcome(tuple(digests), catalogued=catalogue and not any(update_row(context, key) for key in keys))


def _metrics_of(layout: Layout, info: CheckpointInfo) -> tuple[str, ...] | None:
    """Return the names of the metrics of a locked checkpoint, or None if they cannot be read."""
    # Read the annotations again: an evaluator may have added a metric since the checkpoint was inspected.
    try:
        added = read_annotations(layout.checkpoint(info.key))
    except (CkstoreError, OSError):
        return None
    return tuple(sorted({*info.metrics, *(() if added is None else added.metrics)}))


def _others_taken(
    layout: Layout, info: CheckpointInfo, held: ExitStack
) -> list[tuple[CheckpointKey, locks.DirectoryLock]]:
    """Lock the other generations of a checkpoint."""
    found = []
    for key in other_generations(layout, info.key, info.id):
        with suppress(NoSuchRef):  # another process dropped it
            found.append((key, held.enter_context(_taken(info, layout.checkpoint(key)))))
    return found


def _taken(info: CheckpointInfo, path: StorePath) -> locks.DirectoryLock:
    lock = locks.try_exclusive(path)
    if lock is not None:
        return lock
    if not dirfd_stat.is_directory(path):
        raise gone(info)
    found = dirfd_stat.find(path)
    who = "" if found is None else named_holders(found)
    msg = f"{info.shown} is open for reading{who}"
    raise InUse(msg, hint="close it in the process that has it open, then delete again")
