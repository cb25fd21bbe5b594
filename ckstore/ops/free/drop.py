"""Drop one checkpoint: rename it to trash, durably; delete one by its ref, and give back what only it used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from ckstore.errors import CatalogUnavailable, CkstoreError, DamagedBlob, InUse, NoSuchRef
from ckstore.fs import dirfd_stat, files, locks
from ckstore.fs.lock_holders import named_holders
from ckstore.fs.store_path import StorePath
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
from ckstore.ops.index.reconcile import reconcile_one
from ckstore.ops.notices import warn
from ckstore.ops.refs.evaluations import check_not_evaluated
from ckstore.ops.refs.find import AnyRef, find, torn_at
from ckstore.ops.refs.protection import check_unprotected, gone

# What is not done in time the next opener does, so a delete need not wait for long.
_CATALOG_TIMEOUT_S = 5.0
# A saver has the run for as long as it takes to judge the checkpoint that it replaces.
_RUN_TIMEOUT_S = 10.0
_UNFREED = "unfreed"
_HOW = "ckstore gc --exclusive, gc(exclusive=True) in Python"


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was dropped."""

    digests: tuple[str, ...]  # the blobs that it named
    catalogued: bool  # whether the catalog knows; if not, the next opener tells it


def delete(context: Context, ref: AnyRef, *, dry_run: bool = False, now: bool = False) -> None:
    """Delete a checkpoint durably and free what only it used; with `dry_run` only raise what would keep it."""
    try:
        info = find(context, ref)
    except (DamagedBlob, NoSuchRef):
        # What is not whole no ref names, and it must not stay for ever.
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
        if dropped.catalogued:  # else the next opener tells the catalog, and gc finds the blobs
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
            events.note(context, "dropped", key.run_step, why="by hand; it was not whole")
            if _reconcile(context, key):
                reclaim.free_unused(context, digests)


def drop_torn(
    context: Context, key: CheckpointKey, undo_s: float = 0, *, protected: bool = True, by_hand: bool = True
) -> list[str]:
    """Move a directory that holds no complete checkpoint to trash, durably; return the digests that it named.

    Args:
        context: The store.
        key: Its place.
        undo_s: For so many seconds it can be brought back.
        protected: A tag or a pin keeps it.
        by_hand: A user named it. If not, what was put there from another step or store stays.

    Raises:
        InUse, Protected: A process has it open, or a tag or a pin names it.
        NoSuchRef: It was removed or replaced meanwhile, or is whole.
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
                raise NoSuchRef(f"{key.name} was repaired or replaced meanwhile", hint="look at it, then delete again")
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
    return NoSuchRef(f"{key.name} is no longer there", hint="ckstore log shows what there is")


def _undo_by_hand_s(context: Context) -> float:
    try:
        return setting_of(context.layout, UNDO_BY_HAND_S)
    except (CkstoreError, OSError):
        if not context.shared:
            raise
        return UNDO_BY_HAND_S.default  # its opening said that they cannot be read


def tell_unfreed(context: Context) -> str:
    """Return, the first time for an open store, that bytes stay for the grace; later an empty string.

    The locks, open files and catalogs of other hosts are not seen from here. So on a shared filesystem nothing is
    unlinked at once that another host could have: it stays in ``staging/`` and ``trash/`` for a grace
    (`ckstore.objects.shared.grace`), or until a user who knows that no other host uses the store runs gc and says so.
    """
    if not context.shared or _UNFREED in context.notices.problems:
        return ""
    context.notices.problems[_UNFREED] = (
        f"dropped checkpoints keep their bytes for a while (config.grace_s), since other hosts may be using the store: "
        f"{context.shared}; a later gc frees them, and at once, when no other host uses the store: {_HOW}"
    )
    return context.notices.problems[_UNFREED]


def make_kept_durable(context: Context, run: str) -> None:
    """Make the checkpoints of a run as durable as those are gone that are dropped for them (rule F)."""
    for parent in (context.layout.checkpoints / run, context.layout.checkpoints, context.layout.staging):
        files.sync_directory(parent)


def check_droppable(context: Context, info: CheckpointInfo) -> None:
    """Raise what `drop` would raise of a checkpoint at this moment: it is in use, tagged or pinned, or gone."""
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
) -> Dropped:
    """Move a checkpoint that is not in use, tagged or pinned to trash, durably; `make_kept_durable` goes before.

    It waits there for `undo_s`, to be brought back; where other hosts may be at work the grace is that time. Its other
    generations go with it, or one of them would be the checkpoint from then on; they cannot be brought back. `last` is
    called right before, with the lock that keeps all others from it. With `is_former_form` this generation goes alone,
    since the same checkpoint is published in a later one: tags and pins name that one. After an `OSError`, and without
    `durable`, it may or may not come back after a power cut. Without `catalogue` the caller reconciles its rows.
    """
    layout = context.layout
    path = layout.checkpoint(info.key)
    with ExitStack() as held:
        # The run first, as savers do: one that looks at the checkpoints of a step finds the same until its rename.
        run_lock = held.enter_context(_run_locked(layout, info))
        lock = held.enter_context(_taken(info, path))
        if not is_former_form:
            check_unprotected(context, info.key, info)
            check_not_evaluated(context, info)
        # What was found by its ref may have been dropped, and another directory moved there by hand.
        if id_at(path) != info.id:
            raise gone(info)
        others = [] if is_former_form else _others_taken(layout, info, held)
        if last is not None:
            last(lock)
        run_lock.check()
        metrics = _metrics_of(layout, info)
        names = [trash.names_in(one.inside / BLOBS) for one in (lock, *(one for _, one in others))]
        digests = dict.fromkeys(name for of_one in names for name in of_one if is_digest(name))
        for key, other in others:  # before it: a process that dies in between leaves the checkpoint as it was
            with suppress(FileNotFoundError):  # another process moved it at this moment
                trash.move_to_trash(layout, layout.checkpoint(key), other)
            context.known.directories.changed(key, None, None)
        try:
            # Right before the rename: a lock service that was restarted may have given the run to another host.
            run_lock.check()
            before = layout.run_stamp(info.run)
            trash.move_to_trash(layout, path, lock, undo_s=undo_s if context.has_undo else 0)
            change = RunChange(before, layout.run_stamp(info.run))
        except FileNotFoundError:  # another process moved it at this moment
            raise gone(info) from None
        run_lock.release()  # savers need not wait for the disk
        # The new name first: if a power cut left neither name, nothing would tell gc of its blobs.
        for folder in (layout.trash, path.parent) if durable else ():
            files.sync_directory(folder)
    context.known.directories.changed(info.key, None, change)
    if not is_former_form:
        events.note(context, "dropped", info.key.run_step, id=info.id, why=why, metrics=metrics)
    keys = (info.key, *(key for key, _ in others))
    return Dropped(tuple(digests), catalogued=catalogue and all(_reconcile(context, key) for key in keys))


def _metrics_of(layout: Layout, info: CheckpointInfo) -> tuple[str, ...] | None:
    """Return the names of the metrics of a checkpoint that is locked; None if they cannot be read."""
    # Read again: an evaluator may have added one since the checkpoint was looked at.
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


def _run_locked(layout: Layout, info: CheckpointInfo) -> locks.DirectoryLock:
    try:
        return store_locks.lock_run(layout, info.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S)
    except FileNotFoundError:
        raise gone(info) from None


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


def _reconcile(context: Context, key: CheckpointKey) -> bool:
    """Make the catalog equal to the directory."""
    try:
        reconcile_one(context, key, timeout_s=_CATALOG_TIMEOUT_S)
    except (CatalogUnavailable, InUse, OSError):  # the next opener does it
        return False
    return True
