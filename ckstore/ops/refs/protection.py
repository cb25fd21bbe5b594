"""Protect checkpoints by tags and pins. Retention, `delete` and replacements never remove a protected checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

from ckstore.errors import DamagedBlob, NoSuchRef, Protected
from ckstore.fs import files, locks
from ckstore.model.checkpoint.pins import Pin
from ckstore.model.checkpoint.tag import parse_tag
from ckstore.model.document import shown
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey, is_tag
from ckstore.model.words import arguments
from ckstore.objects import store_locks
from ckstore.objects.checkpoints import id_at, key_with_id
from ckstore.objects.documents.pins import read_pins
from ckstore.objects.layout import Layout
from ckstore.ops.context import Context, tags_by_checkpoint

# The number of tries to lock a checkpoint. A try fails only if the checkpoint is compacted at the same time.
_TRIES = 5


def check_unprotected(context: Context, key: CheckpointKey, info: CheckpointInfo | None = None) -> None:
    """Raise if a tag or an unexpired pin names a checkpoint. The caller holds the exclusive lock of its directory.

    Without `info`, for example if the manifest cannot be read, every pin of the step whose id fits the directory
    counts.
    """
    # Check the tags first: an entry of refs/ that cannot be read may protect any checkpoint.
    check_tags(context.layout)
    shown, ref = (key.name, key.name) if info is None else (info.shown, info.ref)
    if tags := tags_by_checkpoint(context.layout).get(key.any_generation):
        hint = "remove the tag first"
        message = f"{shown} has the tag {', '.join(tags)}"
        raise Protected(message, hint=hint, command_hint=f"{hint}: ckstore tag -d {arguments(tags[0])}")
    now = datetime.now(UTC)
    pins = [pin for pin in read_pins(context.layout) if not pin.expired(now)]
    if pins := [pin for pin in pins if (key.fits(pin.run, pin.step, pin.id) if info is None else pin.id == info.id)]:
        message = f"{shown} is pinned: {'; '.join(map(str, pins))}"
        hint = "unpin it first"
        raise Protected(message, hint=hint, command_hint=f"{hint}: ckstore pin -d {arguments(ref)}")


def pins_by_id(context: Context, now: datetime) -> dict[str, tuple[Pin, ...]]:
    """Return the unexpired pins by the id of their checkpoint."""
    found: dict[str, list[Pin]] = {}
    for pin in read_pins(context.layout):
        if not pin.expired(now):
            found.setdefault(pin.id, []).append(pin)
    return {id: tuple(pins) for id, pins in found.items()}


def doubtful_tags(layout: Layout) -> dict[str, str]:
    """Return the names of the entries of ``refs/`` whose checkpoint is unknown, with the problem of each."""
    texts = layout.tag_texts()
    doubtful = {name: problem for name, text in sorted(texts.items()) if (problem := _doubt(layout, name, text))}
    if not doubtful:
        return doubtful
    now = layout.tag_texts()  # ignore tags that were removed or changed in the meantime
    return {name: problem for name, problem in doubtful.items() if name in now and now[name] == texts[name]}


def _doubt(layout: Layout, name: str, text: str | None) -> str:
    if not is_tag(name):
        return f"refs/ has {shown(name)}, which is not a name of a tag"
    if text is None:
        return f"refs/{name} is not a tag: wanted a symlink to a checkpoint"
    target = parse_tag(text)
    if target is None:
        return f"the tag {name} is damaged: refs/{name} must point to one checkpoint, got {shown(text)}"
    if not target.twice and layout.inode(target.key) is None:
        return f"the tag {name} names {target.key.name}, which does not exist, and may be damaged"
    return ""


def check_tags(layout: Layout) -> None:
    """Raise if an entry of ``refs/`` does not show which checkpoint it protects."""
    # If refs/ is a symlink or a file, the tags are unknown, which is not the same as having no tags.
    with suppress(FileNotFoundError), files.opened_directory(layout.refs):
        pass
    for name, problem in doubtful_tags(layout).items():
        raise damaged_tag(name, problem)


def damaged_tag(name: str, problem: str) -> DamagedBlob:
    """Return the error for an entry of ``refs/`` whose checkpoint is unknown."""
    hint = f"nothing is deleted while it is not known what this tag protects; {way_out(name)}"
    return DamagedBlob(problem, hint=hint)


def way_out(name: str) -> str:
    """Return advice for an entry of ``refs/`` whose checkpoint is unknown."""
    if not is_tag(name):
        return f"`ckstore tag -d {shown(name)}` removes it"
    quoted = arguments(name)
    return f"`ckstore tag {quoted} REF` points it to a checkpoint again, `ckstore tag -d {quoted}` removes it"


@contextmanager
def held(context: Context, info: CheckpointInfo, *, is_durable: bool = False) -> Iterator[locks.DirectoryLock]:
    """Lock a checkpoint for use (law L2), make its name durable (law N2), and yield the lock.

    With `is_durable`, the caller has already made the name durable.
    """
    context.check_writable()
    with ExitStack() as locked:
        try:
            # Lock the run before the checkpoint, as all processes that take both locks do (docs/adr/0004). Otherwise
            # two processes could deadlock. Other hosts see the lock of the run, and do not drop the checkpoint.
            run_lock = locked.enter_context(store_locks.lock_run(context.layout, info.run, exclusive=False))
        except FileNotFoundError:
            raise gone(info) from None
        lock = locked.enter_context(_used(context.layout, info))
        for parent in (
            ()
            if is_durable
            else (context.layout.checkpoints / info.run, context.layout.checkpoints, context.layout.staging)
        ):
            files.sync_directory(parent)
        # Check the lock after the fsyncs, which a server may answer late, and right before the caller writes.
        run_lock.check()
        yield lock


def _used(layout: Layout, info: CheckpointInfo) -> locks.DirectoryLock:
    """Lock a checkpoint for use. If a compaction has dropped the given generation, lock the latest one."""
    key: CheckpointKey | None = info.key
    for _ in range(_TRIES):
        if key is None:
            break
        path = layout.checkpoint(key)
        with suppress(FileNotFoundError), ExitStack() as tried:
            lock = tried.enter_context(locks.lock_shared(path))
            # Check this under the lock, since the checkpoint may have been dropped before it was locked.
            if id_at(path) == info.id and lock.names(path):
                tried.pop_all()
                return lock
        key = key_with_id(layout, *key.run_step, info.id)
    raise gone(info)


def gone(info: CheckpointInfo) -> NoSuchRef:
    """Return the error for a checkpoint that has just disappeared."""
    msg = f"{info.name} with id {info.id} no longer exists"
    return NoSuchRef(msg, hint="it was deleted or replaced in the meantime; ckstore log lists the checkpoints")
