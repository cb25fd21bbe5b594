"""``ckstore savers``: the processes that save in the background."""

from __future__ import annotations

import time

import click

from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed


@click.command()
@framed
def savers(frame: Frame) -> None:
    """List the processes that save to the store in the background.

    The list shows the current state of each process. root sees all of them, and
    other users see only their own.

    \b
    Example:
      ckstore savers
      ckstore savers --json

    \b
    Exit status:
      0  done, even without any such process
      2  wrong usage
      4  no such store
    """
    out = frame.output()
    with frame.reading() as store:
        found = store.savers()
        mirror = store.mirror_status()
    out.documents(found)
    if mirror is not None:
        (out.note if mirror.ok else out.warning)(str(mirror))
    if not found:
        out.note("no process saves to this store in the background")
        return
    rows = [("pid", "trainer", "state", "save", "done", "for")]
    for one in found:
        age = f"{max(0.0, time.time() - one.since):.0f} s"
        rows.append((str(one.pid), str(one.trainer), one.state, one.save or "-", one.done or "-", age))
    out.table(columns(rows, ">><<>>"))
