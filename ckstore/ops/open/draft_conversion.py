"""Convert a store of a draft: its checkpoints get the names that their ids give. Source: docs/format/v1.md.

A draft named the directory of a checkpoint after its step. Only names change, by renames, so readers go on meanwhile.
``store.json`` says so last: a process that dies before leaves the rest to the next one that opens the store to write.
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
from ckstore.ops.refs.labels import write_tag
from ckstore.ops.requires import require

_BUSY_S = 10.0


def convert(context: Context, *, by_hand: bool = False) -> MigrateReport:
    """Give every checkpoint of a draft its name, and its tags; harmless when done before, or by several at once.

    Without `by_hand` a store that was converted is not looked through.
    """
    layout = context.layout
    if CHECKPOINT_IDS in context.settings.requires and not by_hand:
        return MigrateReport(0, 0, ())
    links.make_missing(layout.directories)  # a copy may have left out empty ones
    left: list[str] = []
    renamed: dict[CheckpointKey, CheckpointKey] = {}
    is_whole = _publish_replaced(layout, left)
    for run in layout.runs():
        is_whole &= _rename_all(layout, run, renamed, left)
    tags, tags_left = _convert_tags(layout, renamed)
    # Another process may have renamed and rewritten them, and died (rule F).
    for folder in (layout.checkpoints, layout.staging, layout.refs):
        files.sync_directory(folder)
    # Last: what is not converted yet is looked for at each opening until then.
    if is_whole and not tags_left:
        require(context, CHECKPOINT_IDS)
    return MigrateReport(len(renamed), len(tags), (*left, *tags_left))


def _publish_replaced(layout: Layout, left: list[str]) -> bool:
    """Publish the checkpoints that a replacement took from their places before it died, and that nothing replaced."""
    is_whole = True
    for name in dirfd_stat.names(layout.staging):
        key, path = trash.draft_replaced(layout, name), layout.staging / name
        if key is None or id_at(path) is None:
            continue
        try:
            links.make_directory(layout.checkpoints / key.run)
            # A process that replaces holds it until the new one has its place.
            run_lock = store_locks.lock_run(layout, key.run, exclusive=True, timeout_s=_BUSY_S)
            with run_lock, locks.lock_shared(path, timeout_s=_BUSY_S) as lock:
                # Looked at again: what replaced it may be published by now, and then it is a dead staging.
                id = id_at(path)
                if id is None or trash.draft_replaced(layout, name) is None:
                    continue
                give_name(layout, path, lock, *key.run_step, id)
            for folder in (layout.checkpoints / key.run, layout.checkpoints, layout.staging):
                files.sync_directory(folder)
        except FileNotFoundError:  # another process published it
            continue
        except (CkstoreError, OSError) as error:
            is_whole = False
            left.append(f"{path.inner}: {why_of(error)}")
    return is_whole


def _rename_all(layout: Layout, run: str, renamed: dict[CheckpointKey, CheckpointKey], left: list[str]) -> bool:
    """Rename the checkpoints of a run, durably; False: a process keeps one of them, or another user."""
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
                        left.append(f"{path.inner} has no manifest that can be read")
                        continue
                    run_lock.check()
                    renamed[key], _ = give_name(layout, path, lock, key.run, key.step, id)
            except FileNotFoundError:  # another process renamed or dropped it
                continue
            except (CkstoreError, OSError) as error:  # open for longer than a draft locks it, or another user's
                is_whole = False
                left.append(f"{path.inner}: {why_of(error)}")
        # Also where there was nothing to rename: another process may have done it, and died (rule F).
        files.sync_directory(layout.checkpoints / run)
    return is_whole


def _convert_tags(layout: Layout, renamed: Mapping[CheckpointKey, CheckpointKey]) -> tuple[list[str], list[str]]:
    """Let the tags of a draft name the id; return those that do now, and what is wrong with others."""
    done: list[str] = []
    left: list[str] = []
    for name, text in layout.tag_texts().items():
        target = parse_tag(text) if is_tag(name) and text is not None else None
        if target is None or not target.key.is_draft:
            continue
        key = renamed.get(target.key)
        if key is None and layout.inode(target.key) is None:
            key = _oldest(layout, target.key)
        if key is None:  # its checkpoint keeps its name, or it dangles as before
            continue
        try:
            with (
                store_locks.lock_run(layout, key.run, exclusive=True, timeout_s=_BUSY_S),
                locks.lock_shared(layout.checkpoint(key), timeout_s=_BUSY_S),
            ):
                # Another process may have converted the store, and pointed the tag to another checkpoint since.
                if layout.tag_texts().get(name) == text:
                    write_tag(layout, name, key)
                    done.append(name)
        except (CkstoreError, OSError) as error:
            left.append(f"refs/{name}: {why_of(error)}")
    return done, left


def _oldest(layout: Layout, draft: CheckpointKey) -> CheckpointKey | None:
    """Return the checkpoint that had the place of a draft: of its step it was saved first, if there are others."""
    complete = published_of_step(layout, *draft.run_step)
    return complete[0].key if complete else next(iter(layout.of_step(*draft.run_step)), None)
