"""Drop what a newer checkpoint of the same step, or a later form of the same checkpoint, supersedes.

A save that replaces does it at once; what it could not drop, since it was open or the process died, gc drops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from ckstore.errors import CkstoreError, DamagedBlob, InUse, NoSuchRef, Protected
from ckstore.fs import files, locks, peek
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.objects import store_locks, trash
from ckstore.objects.checkpoints import look
from ckstore.ops.acts import why_of
from ckstore.ops.config_file import UNDO_BY_HAND_S, UNDO_BY_RULE_S, setting_of
from ckstore.ops.context import Context
from ckstore.ops.free.drop import drop, make_kept_durable
from ckstore.ops.index.facts import facts_at
from ckstore.ops.index.reconcile import stamps
from ckstore.ops.refs.listing import infos
from ckstore.ops.refs.protection import check_unprotected

_RUN_TIMEOUT_S = 10.0


def drop_older(
    context: Context, new: CheckpointInfo, keys: Iterable[CheckpointKey], *, newer: bool = False
) -> list[str]:
    """Drop the checkpoints at `keys`, of the step of `new`, that come before it; return what the user should know.

    With `newer` also those that come after it. The caller reconciles the rows of all, then calls `reclaim.give_back`:
    blobs that only they used are left for gc, which looks at all processes once and not with each save. Raises nothing:
    `new` is durable, and gc drops later what stays now.
    """
    notes: list[str] = []
    for key in keys:
        try:
            _drop_one(context, new, key, newer=newer)
        except (FileNotFoundError, NotADirectoryError, NoSuchRef):  # another process dropped it
            continue
        except (Protected, InUse) as error:
            notes.append(f"the older checkpoint of {new.name} stays: {error.message}")
        except (CkstoreError, OSError) as error:
            notes.append(f"the older checkpoint of {new.name} was not dropped: {why_of(error)}")
    return notes


def _drop_one(context: Context, new: CheckpointInfo, key: CheckpointKey, *, newer: bool) -> None:
    try:
        older = facts_at(context, key)
    except (DamagedBlob, FileNotFoundError):
        _discard_unreadable(context, new, key)
        return
    if older.order >= new.order and not newer:  # another save of the step came after this one
        return
    # Nothing is promised of what cannot be undone, so a power cut may bring it back, superseded; gc drops it again.
    undo_s = _undo_s(context)
    why, is_form = f"replaced by {short_id(new.id)}", older.id == new.id
    drop(context, older, why, undo_s, is_former_form=is_form, durable=undo_s > 0, catalogue=False)


def _discard_unreadable(context: Context, new: CheckpointInfo, key: CheckpointKey) -> None:
    """Move a directory without a readable manifest to trash, unless a tag or a pin names it, or a process has it open.

    A whole checkpoint that was put there stays: it is one of another step, or of another hash.
    """
    layout, path = context.layout, context.layout.checkpoint(key)
    with store_locks.lock_run(layout, key.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S) as run_lock:
        found = look(layout, key)
        if not found.problem or found.is_another or found.is_closed:
            return
        lock = locks.try_exclusive(path)
        if lock is None:
            raise InUse(f"a process is using {path}")
        with lock:
            if key.any_generation != new.key.any_generation:
                check_unprotected(context, key)
            run_lock.check()
            trash.move_to_trash(layout, path, lock)
        for folder in (layout.trash, path.parent):
            files.sync_directory(folder)
    context.known.directories.changed(key, None, None)


def due(context: Context, *, purge: bool = False) -> list[CheckpointInfo]:
    """Return the superseded checkpoints whose undo window is over, or all with `purge`, and former forms of others.

    Protected ones are among them. The window is that of what a person drops, since it may be one that came back.
    """
    by_step: defaultdict[tuple[str, int], list[CheckpointKey]] = defaultdict(list)
    for seen in context.known.directories.look(context.layout).values():
        for key in seen.published:
            by_step[key.run_step].append(key)
    keys = [key for of_step in by_step.values() if len(of_step) > 1 for key in of_step]
    if not keys:
        return []
    window_s = 0 if purge else setting_of(context.layout, UNDO_BY_HAND_S)
    found = infos(context, at=stamps(context, keys))
    return [
        info
        for info in found
        if info.superseded and (is_former_form(info, found) or not _left_s(context, info, window_s))
    ]


def is_former_form(info: CheckpointInfo, of_step: Iterable[CheckpointInfo]) -> bool:
    """Whether a later generation of the same checkpoint is among others of its step."""
    return any(other.id == info.id and other.key.generation > info.key.generation for other in of_step)


def drop_superseded(context: Context, *, purge: bool = False) -> None:
    """Drop what is `due` and neither protected nor open, durably."""
    # What stays is asked again by the next gc, and `ckstore log --all` shows it.
    going = due(context, purge=purge)
    for run in {info.run for info in going}:
        make_kept_durable(context, run)
    for info in going:
        of_step = infos(context, at=stamps(context, context.layout.of_step(info.run, info.step)))
        with suppress(Protected, InUse, NoSuchRef):
            drop(context, info, "superseded", is_former_form=is_former_form(info, of_step))


def _left_s(context: Context, info: CheckpointInfo, window_s: float) -> float:
    # Its rename to its name set ctime, which no user can set back.
    found = peek.find(context.layout.checkpoint(info.key))
    return 0.0 if found is None else trash.left_of(window_s, found.st_ctime)


def _undo_s(context: Context) -> float:
    try:
        return setting_of(context.layout, UNDO_BY_RULE_S)
    except (CkstoreError, OSError):  # the checkpoint is saved; what it replaced goes as if nothing was set
        return 0
