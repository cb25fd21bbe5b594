"""``ckstore pin``: protect a checkpoint from deletion, remove pins, or list them."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ckstore.model.checkpoint.pins import Pin
from ckstore.model.digest import short_id
from ckstore.model.times import duration_s
from ckstore.model.words import printable
from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed
from ckstore_cli._output import Output
from ckstore_cli._refs import complete_ref


@click.command()
@click.argument("ref", required=False, shell_complete=complete_ref)
@click.option("--delete", "-d", is_flag=True, help="Remove the pin with this name, or all pins of the checkpoint REF.")
@click.option("--reason", metavar="TEXT", help="Reason of the pin, which is shown wherever it protects the checkpoint.")
@click.option("--expires", metavar="TIME", help="How long the pin lasts, such as 90m, 36h or 7d. Default: forever.")
@framed
def pin(frame: Frame, ref: str | None, delete: bool, reason: str | None, expires: str | None) -> None:
    """Protect the checkpoint REF from being deleted, or list the pins.

    ckstore delete, prune, gc and the retention rules of the store keep a pinned
    checkpoint. With -d, remove the pin with the given name, or all pins of the
    checkpoint REF.

    \b
    Example:
      ckstore pin
      ckstore pin best --reason 'in the paper'
      ckstore pin main@1200 --reason 'evaluation runs' --expires 36h
      ckstore pin -d main@1200
      ckstore pin -d pin-0a1b2c3d4e

    \b
    Exit status:
      0  done
      2  wrong usage, or TIME is not a valid time
      4  no such store, pin or checkpoint, REF is ambiguous, or it has no pin
      5  another process is deleting the checkpoint
    """
    out = frame.output()
    if delete:
        if ref is None or reason is not None or expires is not None:
            raise click.UsageError("-d needs the name of a pin, or the REF of its checkpoint, and nothing else")
        with frame.writing() as store:
            removed = store.unpin(ref)
        out.document({"removed": removed})
        for name in removed:
            out.line(f"removed {name}")
        return
    if ref is None:
        if reason is not None or expires is not None:
            raise click.UsageError("--reason and --expires need the REF of the checkpoint to pin")
        _list(frame, out)
        return
    if reason is None:
        raise click.UsageError("a pin needs --reason TEXT, so that other users know why the checkpoint is kept")
    if expires is not None:
        duration_s(expires, "--expires")
    with frame.writing() as store:
        info = store.info(ref)
        made = store.pin(info, reason, expires)
    now = datetime.now(UTC)
    out.document(made, expired=made.expired(now))
    out.line(f"pinned {info.shown} as {made.name}, {_until(made, now)}")


def _list(frame: Frame, out: Output) -> None:
    with frame.reading() as store:
        found = store.pins()
    now = datetime.now(UTC)
    for one in found:
        out.document(one, expired=one.expired(now))
    if not found:
        out.note("no pins")
        return
    head = ("PIN", "CHECKPOINT", "ID", "PROTECTED", "REASON")
    rows = [
        (
            one.name,
            f"{one.run}@{one.step}{' (deleted)' if one.dangling else ''}",
            short_id(one.id),
            _until(one, now),
            printable(one.reason),
        )
        for one in found
    ]
    out.table([line.rstrip() for line in columns([head, *rows], "<<<<<")])


def _until(one: Pin, now: datetime) -> str:
    if one.expires is None:
        return "until it is unpinned"
    if one.expired(now):
        return "no longer: it expired"
    return f"until {one.expires[:16].replace('T', ' ')} UTC"
