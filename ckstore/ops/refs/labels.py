"""Labels that are added to a checkpoint after it was saved: tags, pins, metrics and notes.

Tags are relative symlinks in ``refs/`` (docs/format/v1.md, "Tags"). Tags and pins protect a checkpoint from retention
and `delete`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ckstore.errors import BadInput, CatalogUnavailable, CkstoreError, InUse, NoSuchRef
from ckstore.fs import files, links
from ckstore.model.canonical import fits_json
from ckstore.model.checkpoint.annotations import to_add
from ckstore.model.checkpoint.pins import Pin
from ckstore.model.checkpoint.tag import Tag, tag_text
from ckstore.model.document import shown
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey, check_tag
from ckstore.model.times import expiry, text_of_time
from ckstore.objects import store_locks
from ckstore.objects.checkpoints import key_with_id
from ckstore.objects.documents.annotations import add_annotations
from ckstore.objects.documents.evaluations import remove_of
from ckstore.objects.documents.pins import read_pins, remove_pin, write_pin
from ckstore.objects.layout import Layout
from ckstore.ops.context import Context, annotated
from ckstore.ops.notices import warn
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.protection import doubtful_tags, gone, held, way_out

# The tag is already durable. If the catalog cannot be updated within this time, the next opening updates it.
_CATALOG_TIMEOUT_S = 5.0


def write_tag(layout: Layout, tag: str, key: CheckpointKey) -> None:
    """Point `tag` to a checkpoint durably, replacing an older target in one step."""
    _point(layout, tag, key)
    files.sync_directory(layout.refs)


def _point(layout: Layout, tag: str, key: CheckpointKey) -> None:
    with store_locks.lock_tags(layout, exclusive=False):
        _replace(layout, tag, key)


def move_tag(layout: Layout, tag: str, text: str | None, key: CheckpointKey) -> bool:
    """Point `tag` to a checkpoint durably if its symlink still has the content `text`; return whether it moved."""
    # Without the exclusive lock, this call could revert the change of a process that has just moved or removed the tag.
    with store_locks.lock_tags(layout, exclusive=True) as lock:
        if layout.tag_texts([tag]).get(tag) != text:
            return False
        lock.check()
        _replace(layout, tag, key)
    files.sync_directory(layout.refs)
    return True


def _replace(layout: Layout, tag: str, key: CheckpointKey) -> None:
    # The caller holds a shared lock on the directory of the checkpoint, so that no process drops it.
    fresh = layout.refs / f".{tag}.{uuid.uuid4().hex[:12]}"
    try:
        links.symlink(tag_text(key), fresh)
        # Rename the new symlink over the old one, so that the tag always exists and protects a checkpoint.
        links.rename(fresh, layout.refs / tag)
    except BaseException:  # including exceptions of a signal handler
        with contextlib.suppress(OSError):  # this must not hide the first error
            links.unlink(fresh)
        raise


def tag_all(context: Context, wanted: Iterable[tuple[CheckpointInfo, Sequence[str]]]) -> None:
    """Point tags to checkpoints, with one fsync per checkpoint and one update of the catalog."""
    for info, names in wanted:
        for name in names:
            check_tag(name)
        with held(context, info):
            for name in names:
                _point(context.layout, name, info.key)
            files.sync_directory(context.layout.refs)
    _tell_catalog(context)


def tag(context: Context, name: str, ref: AnyRef) -> CheckpointInfo:
    """Point a new or existing tag to a checkpoint durably; return the current facts about the checkpoint."""
    info = find(context, ref)
    tag_all(context, [(info, [name])])
    return find(context, info)


def untag(context: Context, name: str) -> None:
    """Remove the entry `name` of ``refs/`` durably: a tag, which may be dangling, or another file or symlink."""
    context.check_writable()
    if not isinstance(name, str):
        raise BadInput(f"the name of a tag is a str, got {shown(name)}")
    if name not in context.layout.tag_texts():
        raise _no_tag(context, name)
    try:
        with store_locks.lock_tags(context.layout, exclusive=False):
            links.unlink(context.layout.refs / name)
    except FileNotFoundError:
        raise _no_tag(context, name) from None
    except IsADirectoryError as error:
        msg = f"refs/{name} is a directory, not a tag"
        raise BadInput(msg, hint=f"move it out of {context.layout.refs} by hand") from error
    files.sync_directory(context.layout.refs)
    _tell_catalog(context)


def tags(context: Context) -> list[Tag]:
    """Return all tags sorted by name, each with its checkpoint, and warn about unreadable tags."""
    from ckstore.ops.refs.listing import infos

    listed = infos(context, superseded=True)
    ids = {info.key.any_generation: info.id for info in listed}
    of_steps = {(info.run, info.step): info.id for info in listed}
    found = context.layout.tags()
    for name, problem in doubtful_tags(context.layout).items():
        if name not in found:
            warn(f"{problem}, so nothing is dropped; {way_out(name)}")
    ids = {key: of_steps[key.run_step] for key in found.values() if key.run_step in of_steps and key.is_draft} | ids
    superseded = {info.id for info in listed if info.superseded}
    return [
        Tag(name, key.run, key.step, id := ids.get(key), superseded=id in superseded)
        for name, key in sorted(found.items())
    ]


def _no_tag(context: Context, name: str) -> NoSuchRef:
    known = sorted(context.layout.tags())[:5]
    msg = f"there is no tag {name!r}"
    return NoSuchRef(msg, hint=f"the tags are {', '.join(known)}" if known else "the store has no tags")


def _tell_catalog(context: Context) -> None:
    try:
        context.catalog.replace_tags(context.layout.tags, timeout_s=_CATALOG_TIMEOUT_S)
    except (CatalogUnavailable, InUse):  # refs/ is authoritative; the next opener updates the rows
        return


def pin(context: Context, ref: AnyRef, reason: object, expires: str | float | timedelta | datetime | None) -> Pin:
    """Pin a checkpoint durably."""
    info = find(context, ref)
    if not isinstance(reason, str) or not fits_json(reason):
        raise BadInput(f"reason must be a text, got {reason!r}")
    now = datetime.now(UTC)
    until = expiry(expires, now)
    made = Pin(
        name=f"pin-{uuid.uuid4().hex[:10]}",
        run=info.run,
        step=info.step,
        id=info.id,
        reason=reason,
        created=text_of_time(now),
        expires=None if until is None else text_of_time(until),
    )
    # `held` locks the checkpoint and makes it durable before the pin is written (laws L2, N2), so that a power cut
    # cannot leave a pin without its checkpoint.
    with held(context, info):
        write_pin(context.layout, made)
    return made


def unpin(context: Context, target: AnyRef | Pin) -> list[str]:
    """Remove a pin, or all pins of a checkpoint, and return the names of the removed pins."""
    context.check_writable()
    if isinstance(target, Pin):
        target = target.name
    if isinstance(target, str) and remove_pin(context.layout, target):
        return [target]
    try:
        info = find(context, target)
    except (NoSuchRef, BadInput) as error:
        msg = f"no pin has the name {target!r}, and it is not a checkpoint either: {error.message}"
        raise NoSuchRef(msg, hint="store.pins() lists the pins") from error
    names = [found.name for found in read_pins(context.layout) if found.id == info.id]
    removed = [name for name in names if remove_pin(context.layout, name)]
    if not removed:
        raise NoSuchRef(f"{info.name} is not pinned", hint="store.pins() lists the pins")
    return removed


def pins(context: Context) -> list[Pin]:
    """Return every pin, including expired ones, in the order of creation."""
    found = sorted(read_pins(context.layout), key=lambda pin: (pin.created, pin.name))
    return [replace(pin, dangling=key_with_id(context.layout, pin.run, pin.step, pin.id) is None) for pin in found]


def annotate(context: Context, ref: AnyRef, metrics: Mapping[str, Any] | None, note: str | None) -> CheckpointInfo:
    """Add metrics and a note to a checkpoint durably, and return the current facts about it.

    Raises:
        CkstoreError: The existing annotations are damaged. Nothing was changed.
    """
    info = find(context, ref)
    more = to_add(metrics, note, text_of_time(datetime.now(UTC)))
    with held(context, info) as lock:
        info = replace(info, directory=lock.inside.name)  # `held` may have locked a later generation
        try:
            add_annotations(context.layout, lock, more)
        except CkstoreError as error:
            if not error.hint:
                error.hint = "repair or remove that file, then annotate again"
            raise
        if not lock.names(context.layout.checkpoint(info.key)):  # it was dropped with its annotations
            raise gone(info)
    # Remove the evaluation records after the metrics are durable: an evaluator that finds no record then reads the
    # metrics.
    remove_of(context.layout, info.id, more.metrics)
    return annotated(context, info)
