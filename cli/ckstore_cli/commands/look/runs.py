"""``ckstore runs``: the runs of a store."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ckstore_cli._format import age_text, columns
from ckstore_cli._frame import Frame, framed

_HEAD = ("RUN", "CHECKPOINTS", "NEWEST", "AGE")


@click.command()
@framed
def runs(frame: Frame) -> None:
    """List the runs of the store, the one that saved last first.

    NEWEST is the step of the checkpoint that was saved last. ckstore log --run
    RUN lists the checkpoints of a run, ckstore du what each takes on the disk.

    \b
    Example:
      ckstore runs
      ckstore runs --json | jq -r .run

    \b
    Exit status:
      0  done, also when there is no checkpoint yet
      2  wrong usage
      4  there is no such store
    """
    out = frame.output()
    with frame.reading() as store:
        found = store.runs()[::-1]
    for one in found:
        out.document(one)
    if not found:
        out.note("no checkpoint yet")
        return
    now = datetime.now(UTC)
    rows = [
        (one.name, str(one.checkpoint_count), str(one.newest.step), age_text(one.newest.created, now)) for one in found
    ]
    out.table(columns([_HEAD, *rows], "<>>>"))
