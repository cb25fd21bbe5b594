"""Pin checkpoints, so that neither retention nor `delete` takes them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.canonical import fits_json
from ckstore.model.checkpoint.pins import Pin
from ckstore.model.names import CheckpointKey
from ckstore.model.times import expiry, text_of_time
from ckstore.objects.checkpoints import id_at
from ckstore.objects.documents.pins import read_pins, remove_pin, write_pin
from ckstore.ops.context import Context
from ckstore.ops.refs.find import AnyRef, find
from ckstore.ops.refs.protection import held


def pin(context: Context, ref: AnyRef, reason: object, expires: str | float | timedelta | datetime | None) -> Pin:
    """Pin a checkpoint, durably."""
    info = find(context, ref)
    if not isinstance(reason, str) or not fits_json(reason):
        raise BadInput(f"reason: wanted a text, got {reason!r}")
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
    # Locked for use, and durable first (law L2, rule F): a pin must not name what a power cut takes.
    with held(context, info):
        write_pin(context.layout, made)
    return made


def pin_again(context: Context, key: CheckpointKey, checkpoint_id: str) -> list[str]:
    """Let the pins of a checkpoint that was replaced name the one that has its place; return their names."""
    moved = [found for found in read_pins(context.layout) if (found.run, found.step) == key]
    for found in moved:
        if found.id != checkpoint_id:
            write_pin(context.layout, replace(found, id=checkpoint_id))
    return [found.name for found in moved]


def unpin(context: Context, target: AnyRef | Pin) -> list[str]:
    """Remove the pin of that name, or all pins of the checkpoint that `target` names; return their names."""
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
    names = [found.name for found in read_pins(context.layout) if (found.run, found.step) == info.key]
    removed = [name for name in names if remove_pin(context.layout, name)]
    if not removed:
        raise NoSuchRef(f"{info.name} is not pinned", hint="store.pins() lists the pins")
    return removed


def pins(context: Context) -> list[Pin]:
    """Return every pin, expired ones too, in the order in which they were made."""
    found = sorted(read_pins(context.layout), key=lambda pin: (pin.created, pin.name))
    return [replace(pin, dangling=id_at(context.layout.checkpoint(pin.run, pin.step)) != pin.id) for pin in found]
