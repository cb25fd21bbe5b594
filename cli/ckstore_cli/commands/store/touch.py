"""``ckstore touch``: renew file times, for filesystems that delete old files."""

from __future__ import annotations

import click

from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_ref, complete_run


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@click.option(
    "--run", metavar="RUN", shell_complete=complete_run, help="Renew the times of all checkpoints of this run."
)
@framed
def touch(frame: Frame, refs: tuple[str, ...], run: str | None) -> None:
    """Renew the file times of the checkpoints REF, or of all checkpoints.

    Some filesystems for temporary data, such as /scratch, delete files that were
    not modified or read for some weeks. A save renews the times of the blobs that
    it uses. Run this command for checkpoints that no save uses any more, if the
    rules of the filesystem allow it. No data is read or written.

    \b
    Example:
      ckstore touch
      ckstore touch main@1000 best:loss
      ckstore touch --run sweep-7

    \b
    Exit status:
      0  done
      2  wrong usage
      4  no such store, run or checkpoint
    """
    out = frame.output()
    with frame.writing() as store:
        report = store.touch(refs or None, run=run)
    out.document(report)
    out.line(str(report).splitlines()[0])
