"""``ckstore du``: what the checkpoints take on the disk."""

from __future__ import annotations

import click

from ckstore.model.reports.usage import summary
from ckstore.model.sizes import size_text
from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed

_HEAD = ("CHECKPOINT", "HOLDS", "FREES", "SHARES")


@click.command()
@framed
def du(frame: Frame) -> None:
    """Show what each checkpoint takes on the disk, and what deleting it would free.

    HOLDS is the size of a copy, FREES what deleting only this checkpoint frees,
    SHARES what other checkpoints need too.

    \b
    Example:
      ckstore du
      ckstore du --json | jq .disk_bytes

    \b
    Exit status:
      0  done
      2  wrong usage
      4  there is no such store
    """
    out = frame.output()
    with frame.reading() as store:
        usage = store.du()
    out.document(usage)
    if usage.checkpoints:
        rows = [
            (one.name, size_text(one.logical_bytes), size_text(one.unique_bytes), size_text(one.shared_bytes))
            for one in usage.checkpoints
        ]
        out.table(columns([_HEAD, *rows], "<>>>"))
        out.line()
    for line in summary(usage):
        out.line(line)
