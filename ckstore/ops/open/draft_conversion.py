"""Convert a store of a draft format: rename its checkpoints according to their ids.

Source: docs/format/v1.md. Drafts of the format named the directory of a checkpoint after its step. Directories are only
renamed, so readers keep running. ``store.json`` is updated last. If the process dies before this update, the next
process that opens the store for writing continues the conversion.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckstore.errors import CkstoreError, InUse
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.model.checkpoint.tag import parse_tag
from ckstore.model.names import CheckpointKey, is_tag
from ckstore.model.reports.migrate_report import MigrateReport
from ckstore.model.settings.settings import CHECKPOINT_IDS
from ckstore.objects import store_locks, trash
from ckstore.objects.checkpoints import id_at, published_of_step
from ckstore.objects.layout import Layout
from ckstore.objects.publish import give_name
from ckstore.ops.api_calls import why_of
from ckstore.ops.context import Context
from ckstore.ops.refs.labels import move_tag
from ckstore.ops.requires import require

_BUSY_S = 10.0


def convert(context: Context, *, by_hand: bool = False) -> MigrateReport:
    """Rename every checkpoint of a draft, and rewrite its tags.

    The conversion can be repeated, and several processes may do it at the same time. Unless `by_hand`, a converted
    store is not searched again.
    """
    layout = context.layout
    if CHECKPOINT_IDS in context.settings.requires and not by_hand:
        return MigrateReport(0, 0, ())
    links.make_missing(layout.directories)  # a copy of a store may lack empty directories
    left: list[str] = []
    renamed: dict[CheckpointKey, CheckpointKey] = {}
    is_whole = _publish_replaced(layout, left)
    for run in layout.runs():
        is_whole &= _rename_all(layout, run, renamed, left)
    tags, tags_left = _convert_tags(layout, renamed)
    # Sync these directories even if nothing was renamed, since another process may have renamed something and died
    # before the sync (law N2).
    for folder in (layout.checkpoints, layout.staging, layout.refs):
        files.sync_directory(folder)
    # Record the conversion last. Until then, each opening continues it.
    if is_whole and not tags_left:
        require(context, CHECKPOINT_IDS)
    return MigrateReport(len(renamed), len(tags), (*left, *tags_left))


def _publish_replaced(layout: Layout, left: list[str]) -> bool:
    """Publish the checkpoints that a process of a draft version moved away for a replacement, if that process died."""
    is_whole = True
    for name in dirfd_stat.names(layout.staging):
        key, path = trash.draft_replaced(layout, name), layout.staging / name
        if key is None or id_at(path) is None:
            continue
        try:
            links.make_directory(layout.checkpoints / key.run)
            # A running process that replaces a checkpoint holds this lock until the new checkpoint has its name.
            run_lock = store_locks.lock_run(layout, key.run, exclusive=True, timeout_s=_BUSY_S)
            with run_lock, locks.lock_shared(path, timeout_s=_BUSY_S) as lock:
                # Check again under the lock. If the replacement was published meanwhile, this is a dead staging.
                id = id_at(path)
                if id is None or trash.draft_replaced(layout, name) is None:
                    continue
                give_name(layout, path, lock, *key.run_step, id)
            for folder in (layout.checkpoints / key.run, layout.checkpoints, layout.staging):
                files.sync_directory(folder)
        except FileNotFoundError:  # another process published the checkpoint
            continue
        except (CkstoreError, OSError) as error:
            is_whole = False
            left.append(f"{path.inner}: {why_of(error)}")
    return is_whole


def _rename_all(layout: Layout, run: str, renamed: dict[CheckpointKey, CheckpointKey], left: list[str]) -> bool:
    """Rename the checkpoints of a run durably; return False if a process or another user prevents a rename."""
    path, is_whole = layout.checkpoints / run, True
    try:
        run_lock = store_locks.lock_run(layout, run, exclusive=True, timeout_s=_BUSY_S)
    except (InUse, PermissionError, FileNotFoundError) as error:
        left.append(f"{path.inner}: {why_of(error)}")
        return False
    with run_lock:
        drafts = sorted(key for key in layout.checkpoints_of(run) if key.is_draft)
        for key in drafts:
            path = layout.checkpoint(key)
            try:
                with locks.lock_shared(path, timeout_s=_BUSY_S) as lock:
                    id = id_at(path)
                    if id is None:
                        left.append(f"{path.inner} has no readable manifest")
                        continue
                    run_lock.check()
                    renamed[key], _ = give_name(layout, path, lock, key.run, key.step, id)
            except FileNotFoundError:  # another process renamed or dropped the checkpoint
                continue
            except (CkstoreError, OSError) as error:  # for example, a process has locked it, or another user owns it
                is_whole = False
                left.append(f"{path.inner}: {why_of(error)}")
        # Sync the run even if nothing was renamed, since another process may have renamed something and died (law N2).
        files.sync_directory(layout.checkpoints / run)
    return is_whole


def _convert_tags(layout: Layout, renamed: Mapping[CheckpointKey, CheckpointKey]) -> tuple[list[str], list[str]]:
    """Make the tags of a draft name ids; return the names of the changed tags, and the problems with other tags."""
    done: list[str] = []
    left: list[str] = []
    for name, text in layout.tag_texts().items():
        target = parse_tag(text) if is_tag(name) and text is not None else None
        if target is None or not target.key.is_draft:
            continue
        key = renamed.get(target.key)
        if key is None and layout.inode(target.key) is None:
            # In a draft, the directory of a step contained the checkpoint that was saved first.
            complete = published_of_step(layout, *target.key.run_step)
            key = complete[0].key if complete else next(iter(layout.of_step(*target.key.run_step)), None)
        if key is None:  # the checkpoint was not renamed, or the tag names no checkpoint
            continue
        try:
            with (
                store_locks.lock_run(layout, key.run, exclusive=True, timeout_s=_BUSY_S),
                locks.lock_shared(layout.checkpoint(key), timeout_s=_BUSY_S),
            ):
                # `move_tag` changes nothing if another process has changed the tag.
                if move_tag(layout, name, text, key):
                    done.append(name)
        except (CkstoreError, OSError) as error:
            left.append(f"refs/{name}: {why_of(error)}")
    return done, left
