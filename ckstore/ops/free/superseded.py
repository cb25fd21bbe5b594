"""Drop what a newer checkpoint of the same step, or a later form of the same checkpoint, supersedes.

A save that replaces does it at once; what it could not drop, since it was open or the process died, gc drops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from ckstore.errors import CkstoreError, DamagedBlob, InUse, NoSuchRef, OtherHash, Protected
from ckstore.fs import files, locks, peek
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.objects import trash
from ckstore.objects.checkpoints import look
from ckstore.objects.documents.pins import read_pins
from ckstore.ops.acts import why_of
from ckstore.ops.config_file import UNDO_BY_HAND_S, UNDO_BY_RULE_S, setting_of
from ckstore.ops.context import Context, tags_by_checkpoint
from ckstore.ops.free.drop import drop, make_kept_durable
from ckstore.ops.index.facts import facts_at
from ckstore.ops.index.reconcile import stamps
from ckstore.ops.refs.listing import infos


def drop_older(
    context: Context, new: CheckpointInfo, keys: Iterable[CheckpointKey], *, newer: bool = False
) -> list[str]:
    """Drop the checkpoints at `keys`, of the step of `new`, that come before it; return what the user should know.

    With `newer` also those that come after it. The caller reconciles the rows of all, then calls `reclaim.give_back`:
    blobs that only they used are left for gc, which looks at all processes once and not with each save. Raises nothing:
    `new` is durable, and gc drops later what stays now.
    """
    notes: list[str] = []
    which = "another" if newer else "the older"
    for key in keys:
        try:
            _drop_one(context, new, key, newer=newer)
        except (FileNotFoundError, NotADirectoryError, NoSuchRef):  # another process dropped it
            continue
        except (Protected, InUse) as error:
            notes.append(f"{which} checkpoint of {new.name} stays: {error.message}")
        except (CkstoreError, OSError) as error:
            notes.append(f"{which} checkpoint of {new.name} was not dropped: {why_of(error)}")
    return notes


def _drop_one(context: Context, new: CheckpointInfo, key: CheckpointKey, *, newer: bool) -> None:
    try:
        older = facts_at(context, key)
    except OtherHash:  # not of this store, so it is not this store's to drop
        return
    except DamagedBlob:
        _discard_unreadable(context, key)
        return
    if older.order >= new.order and not newer:  # another save of the step came after this one
        return
    # Nothing is promised of what cannot be undone, so a power cut may bring it back, superseded; gc drops it again.
    undo_s = _undo_s(context)
    why, is_form = f"replaced by {short_id(new.id)}", older.id == new.id
    drop(context, older, why, undo_s, is_former_form=is_form, durable=undo_s > 0, catalogue=False)


def _discard_unreadable(context: Context, key: CheckpointKey) -> None:
    """Move a directory whose manifest cannot be read to trash, unless a tag or a pin names it or it is open."""
    layout, path = context.layout, context.layout.checkpoint(key)
    lock = locks.try_exclusive(path)
    if lock is None:
        return
    with lock:
        # A whole checkpoint of another run or step was put there by hand.
        if look(layout, key, lock=lock).is_another or tags_by_checkpoint(layout).get(key.any_generation):
            return
        if any(key.fits(pin.run, pin.step, pin.id) for pin in read_pins(layout)):
            return
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
