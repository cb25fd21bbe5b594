"""List the dropped checkpoints in ``trash/`` that can be restored, and restore them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex

from ckstore.errors import BadInput, DamagedBlob, NoSuchRef
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.checkpoint.refs import has_id, parse_ref
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.gc_report import Waiting
from ckstore.model.times import text_of_time
from ckstore.objects import store_locks, trash
from ckstore.objects.checkpoints import id_at
from ckstore.objects.layout import MANIFEST, RunChange
from ckstore.objects.publish import give_name
from ckstore.ops import events
from ckstore.ops.check.validity import glance
from ckstore.ops.config_file import GRACE_S, setting_of
from ckstore.ops.context import Context
from ckstore.ops.free.gc_plan import freed_in_turn
from ckstore.ops.index.reconcile import stamps, update_row
from ckstore.ops.notices import warn
from ckstore.ops.refs.find import text_of
from ckstore.ops.refs.listing import infos

_RUN_TIMEOUT_S = 10.0


def waiting(context: Context, step: int | None = None) -> tuple[Waiting, ...]:
    """Return the dropped checkpoints that can be restored, the most recently dropped first.

    Each entry has the number of bytes that purging it would free, if entries that expire earlier are purged first. An
    entry that now lacks a blob has a ``problem``. With `step`, only checkpoints of that step are inspected, so that
    restoring one of thousands of checkpoints need not read all of them.
    """
    layout = context.layout
    window_s = 0.0 if layout.view.frees_at_once else setting_of(layout, GRACE_S)
    found: list[Waiting] = []
    named = ((name, trash.former_place(name)) for name in trash.names_in(layout.trash))
    entries = [
        (_left_s(layout.trash / name, window_s), name, place)
        for name, place in named
        if place is not None and step in (None, place.step)
    ]
    entries = sorted(entry for entry in entries if entry[0] > 0)
    published: defaultdict[tuple[str, int], list[CheckpointKey]] = defaultdict(list)
    for seen in context.known.directories.look(layout).values() if entries else ():
        for key in seen.published:
            published[key.run_step].append(key)
    freed = freed_in_turn(context, (layout.trash / name for _, name, _ in entries))
    for (left_s, name, place), blobs in zip(entries, freed, strict=True):
        path = layout.trash / name
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # removed, or owned by another user
            looked = glance(path, place, context.known.manifests)
            # A directory without a manifest is a failed save, or a directory that gc has mostly removed.
            if looked.manifest is None and not dirfd_stat.exists(path / MANIFEST):
                continue
            # A directory whose name does not fit its manifest is from staging/, and was never published.
            if looked.manifest is not None and not place.fits(*place.run_step, looked.manifest_id):
                continue
            # On a shared filesystem, the former generation of a compacted checkpoint also waits in trash for the grace
            # period. It is not a dropped checkpoint.
            if any(id_at(layout.checkpoint(key)) == looked.manifest_id for key in published[place.run_step]):
                continue
            now = datetime.now(UTC)
            dropped = text_of_time(min(now, datetime.fromtimestamp(dirfd_stat.status(path).st_ctime, UTC)))
            until = text_of_time(now + timedelta(seconds=left_s))
            nbytes = sum(size for _, size in blobs)
            found.append(Waiting(*place.run_step, looked.manifest_id, dropped, until, nbytes, name, looked.problem))
    latest = {(one.ref, one.id, one.problem): one for one in sorted(found, key=lambda one: one.dropped)}
    return tuple(sorted(latest.values(), key=lambda one: one.dropped, reverse=True))


def would_wait(
    context: Context, before: Iterable[Waiting], infos: Sequence[CheckpointInfo], undo_s: float
) -> tuple[Waiting, ...]:
    """Return the entries that `waiting` would add to its result `before` if these checkpoints were dropped now.

    They have no name in ``trash/`` yet.
    """
    layout, now = context.layout, datetime.now(UTC)
    earlier = [layout.trash / one.entry for one in sorted(before, key=lambda one: one.until)]
    freed = freed_in_turn(context, [*earlier, *(layout.checkpoint(info.key) for info in infos)])
    at, until = text_of_time(now), text_of_time(now + timedelta(seconds=undo_s))
    found = [
        Waiting(info.run, info.step, info.id, at, until, sum(size for _, size in blobs), "")
        for info, blobs in zip(infos, freed[len(earlier) :], strict=True)
    ]
    return tuple(reversed(found))


def _left_s(path: StorePath, window_s: float) -> float:
    if not window_s:
        return trash.left_s(path)
    found = dirfd_stat.find(path)
    return 0.0 if found is None else trash.left_of(window_s, found.st_ctime)


def undo(context: Context, ref: str | SupportsIndex | CheckpointInfo) -> CheckpointInfo:
    """Restore a dropped checkpoint; see `ckstore.Store.undo`."""
    context.check_writable()
    chosen = _chosen(context, ref)
    if chosen.problem:
        raise DamagedBlob(
            f"{chosen.ref} cannot be restored: {chosen.problem}",
            hint="free the rest of it: store.gc(now=True)",
            command_hint="ckstore gc --now frees the rest of it",
        )
    layout = context.layout
    path, run = layout.trash / chosen.entry, layout.checkpoints / chosen.run
    lock = locks.try_exclusive(path)  # a collector that is removing the checkpoint holds this lock (law L1)
    if lock is None:
        raise _freed(chosen)
    with lock:
        looked = glance(path, trash.former_place(chosen.entry))
        if not lock.names(path) or looked.problem or looked.manifest is None or looked.manifest_id != chosen.id:
            raise _freed(chosen)
        links.make_directory(run)
        with store_locks.lock_run(layout, chosen.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S) as run_lock:
            run_lock.check()
            before = layout.run_stamp(chosen.run)
            key, existing = give_name(layout, path, lock, chosen.run, chosen.step, chosen.id)
            if existing is not None:  # another process has pulled it, or restored it from another entry
                raise _freed(chosen)
            change = RunChange(before, layout.run_stamp(chosen.run))
        # Sync the new parent first (law N4) and trash/ last, so that the checkpoint has at least one name after a power
        # cut. Also sync staging/: if the process that saved the checkpoint and the process that dropped it both died,
        # its name in staging/ may still exist on the disk (law N3).
        for folder in (run, layout.checkpoints, layout.staging, layout.trash):
            files.sync_directory(folder)
        context.known.directories.changed(key, dirfd_stat.status(layout.checkpoint(key)).st_ino, change)
    # Reconcile after releasing the exclusive lock, since reconciling takes a shared lock on the directory.
    update_row(context, key)
    events.note(context, "restored", (chosen.run, chosen.step), id=chosen.id)
    of_step = infos(context, at=stamps(context, layout.of_step(chosen.run, chosen.step)), superseded=True)
    found = next((info for info in of_step if info.id == chosen.id), None)
    if found is None:  # another process dropped it again
        raise _freed(chosen)
    if found.superseded:
        warn(f"{chosen.ref} names a newer checkpoint. {short_id(found.id)} names the restored one; tag it to keep it")
    return found


def _chosen(context: Context, ref: str | SupportsIndex | CheckpointInfo) -> Waiting:
    """Return the dropped checkpoint that a ref names.

    If several match, return the most recently dropped one, if possible without a problem.
    """
    from ckstore.model.manifest.info import CheckpointInfo

    if isinstance(ref, CheckpointInfo):
        fitting = _whole_first(one for one in waiting(context, ref.step) if one.id == ref.id)
    else:
        parsed = parse_ref(text_of(ref))
        if parsed.kind not in ("latest", "step", "id"):
            is_run = parsed.run is None and any(one.run == parsed.value for one in waiting(context))
            hint = f"ckstore undo --run {parsed.value} restores all of it" if is_run else "ckstore undo lists them"
            raise BadInput(f"{ref}: a dropped checkpoint is named by RUN@STEP or its id", hint=hint)
        run = parsed.run if parsed.run is not None else context.run
        step = int(parsed.value) if parsed.kind == "step" else None
        own = _whole_first(one for one in waiting(context, step) if run in (None, one.run))
        if parsed.kind == "latest":
            if not own:
                raise NoSuchRef("nothing can be restored", hint="ckstore undo lists dropped checkpoints")
            return own[0]
        # Interpret digits as a step if a dropped checkpoint has this step, otherwise as the first digits of an id.
        fitting = [one for one in own if str(one.step) == parsed.value] or _whole_first(
            one for one in waiting(context) if run in (None, one.run) and has_id(parsed, one.id)
        )
        if len({one.run for one in fitting}) > 1:
            raise BadInput(f"{ref} was dropped in several runs", hint=f"write {fitting[0].ref}")
    if not fitting:
        listed = ", ".join([one.ref for one in waiting(context) if not one.problem][:4])
        hint = f"these can be restored: {listed}" if listed else "no dropped checkpoint can be restored"
        raise NoSuchRef(f"{ref}: no dropped checkpoint of that name can be restored", hint=hint)
    return fitting[0]


def _whole_first(found: Iterable[Waiting]) -> list[Waiting]:
    return sorted(found, key=lambda one: bool(one.problem))


def _freed(chosen: Waiting) -> NoSuchRef:
    return NoSuchRef(f"{chosen.ref} is being freed by gc, or another process has restored or dropped it")
