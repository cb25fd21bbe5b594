"""What protects a checkpoint: tags and pins. Neither retention nor `delete` nor a replacement takes such a one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ckstore.errors import Protected
from ckstore.objects.documents.pins import read_pins
from ckstore.ops.context import Context, tags_by_checkpoint
from ckstore.ops.refs.doubtful import check_tags

if TYPE_CHECKING:
    from collections.abc import Container

    from ckstore.model.checkpoint.pins import Pin
    from ckstore.model.names import CheckpointKey


def check_unprotected(
    context: Context, key: CheckpointKey, *, moving: Container[str] = (), replacing: bool = False
) -> None:
    """Raise if a tag or an unexpired pin names a checkpoint. The caller holds its run locked against all others."""
    # `moving`: tags that do not count, since the caller is about to move them. `replacing`: whether it is to be
    # replaced by a save, which can be forced.
    # First: while one entry of refs/ cannot be read, any checkpoint may be the one that it protects.
    check_tags(context.layout)
    name = f"{key[0]}@{key[1]}"
    tags = [tag for tag in tags_by_checkpoint(context.layout).get(key, ()) if tag not in moving]
    if tags:
        untag = f"ckstore tag -d {tags[0]}"
        raise _protected(f"{name} has the tag {', '.join(tags)}", "remove the tag first", untag, replacing=replacing)
    pins = pins_by_checkpoint(context, datetime.now(UTC)).get(key)
    if pins:
        message = f"{name} is pinned: {'; '.join(map(str, pins))}"
        raise _protected(message, "unpin it first", f"ckstore pin -d {name}", replacing=replacing)


def _protected(message: str, hint: str, command: str, *, replacing: bool) -> Protected:
    if not replacing:
        return Protected(message, hint=hint, command_hint=f"{hint}: {command}")
    others = ", save under another step, or give "
    return Protected(message, hint=f"{hint}{others}force=True", command_hint=f"{hint} ({command}){others}--force")


def pins_by_checkpoint(context: Context, now: datetime) -> dict[CheckpointKey, tuple[Pin, ...]]:
    """Return the unexpired pins of every checkpoint that has some."""
    found: dict[CheckpointKey, list[Pin]] = {}
    for pin in read_pins(context.layout):
        if not pin.expired(now):
            found.setdefault((pin.run, pin.step), []).append(pin)
    return {key: tuple(pins) for key, pins in found.items()}
