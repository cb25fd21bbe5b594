"""Convert a store of a draft: its checkpoints get the names that their ids give. Source: docs/format/v1.md.

A draft named the directory of a checkpoint after its step. Only names change, by renames, so readers go on meanwhile.
``store.json`` says so last: a process that dies before leaves the rest to the next one that opens the store to write.
"""

from __future__ import annotations

import re
from contextlib import suppress

from ckstore.errors import CkstoreError
from ckstore.fs import files, links, locks, peek
from ckstore.model.checkpoint.tag import parse_tag
from ckstore.model.names import CheckpointKey, is_run, is_tag, step_of
from ckstore.model.reports.migrate_report import MigrateReport
from ckstore.model.settings.settings import CHECKPOINT_IDS
from ckstore.objects.checkpoints import id_at
from ckstore.objects.layout import Layout
from ckstore.objects.publish import give_name
from ckstore.ops.acts import why_of
from ckstore.ops.context import Context
from ckstore.ops.refs.labels import write_tag
from ckstore.ops.requires import require

# A draft replaced a checkpoint by two renames where names could not be exchanged: the first left it under this name.
_OLD = re.compile(r"(?P<run>[^@]+)@(?P<step>[0-9]+)\.[0-9a-f]{12}\.old")
_BUSY_S = 10.0


def convert(context: Context) -> MigrateReport:
    """Give every checkpoint of a draft its name, and its tags; harmless when done before, or by several at once."""
    layout = context.layout
    if CHECKPOINT_IDS in context.settings.requires:
        return MigrateReport(0, 0, ())
    _publish_replaced(layout)
    renamed: dict[CheckpointKey, CheckpointKey] = {}
    left: list[str] = []
    is_whole = True
    for run in layout.runs():
        drafts = sorted(key for key in layout.checkpoints_of(run) if key.is_draft)
        for key in drafts:
            try:
                new = _rename(layout, key)
            except (CkstoreError, OSError) as error:  # open for longer than a draft locks it, or another user's
                is_whole = False
                left.append(f"{layout.checkpoint(key).inner}: {why_of(error)}")
                continue
            if new is None:
                left.append(f"{layout.checkpoint(key).inner} has no manifest that can be read")
            else:
                renamed[key] = new
        if drafts:  # another process may have renamed them, and died (rule F)
            files.sync_directory(layout.checkpoints / run)
    tag_count = _convert_tags(layout, left)
    # Last: what is not converted yet is looked for at each opening until then.
    if is_whole:
        require(context, CHECKPOINT_IDS)
    return MigrateReport(len(renamed), tag_count, tuple(left))


def _publish_replaced(layout: Layout) -> None:
    """Publish the checkpoints that a replacement took from their places before it died, and that nothing replaced."""
    for name in peek.names(layout.staging):
        found = _OLD.fullmatch(name)
        if found is None or (step := step_of(found["step"])) is None or not is_run(found["run"]):
            continue
        path, run = layout.staging / name, found["run"]
        lock = locks.try_exclusive(path)
        if lock is None:
            continue
        with lock:
            id = id_at(path)
            if id is None or layout.of_step(run, step):  # what replaced it is published: it is a dead staging
                continue
            links.make_directory(layout.checkpoints / run)
            give_name(layout, path, lock, run, step, id)
            for folder in (layout.checkpoints / run, layout.checkpoints, layout.staging):
                files.sync_directory(folder)


def _rename(layout: Layout, key: CheckpointKey) -> CheckpointKey | None:
    """Rename one checkpoint; None: nothing says which id it has."""
    path = layout.checkpoint(key)
    with suppress(FileNotFoundError), locks.lock_shared(path, timeout_s=_BUSY_S) as lock:
        id = id_at(path)
        if id is None:
            return None
        return give_name(layout, path, lock, key.run, key.step, id)[0]
    return key  # another process renamed or dropped it


def _convert_tags(layout: Layout, left: list[str]) -> int:
    """Let the tags of a draft name the id, where it is known; return how many do now."""
    count = 0
    for name, text in layout.tag_texts().items():
        target = parse_tag(text) if is_tag(name) and text is not None else None
        if target is None or not target.key.is_draft:
            continue
        # A draft had one checkpoint of a step. One that was not renamed keeps its tag as it is.
        of_step = [key for key in layout.of_step(*target.key.run_step) if not key.is_draft]
        if not of_step:
            left.append(f"refs/{name} names {target.key.name}, which is not there")
            continue
        with locks.lock_shared(layout.checkpoint(of_step[0]), timeout_s=_BUSY_S):
            write_tag(layout, name, of_step[0])
        count += 1
    return count
