"""``ckstore migrate``: convert a store of a draft version of ckstore."""

from __future__ import annotations

import click

from ckstore.errors import DamagedBlob
from ckstore.model.words import counted, printable
from ckstore_cli._frame import Frame, framed


@click.command()
@framed
def migrate(frame: Frame) -> int:
    """Convert a store of a draft version of ckstore.

    The command renames the directory of each checkpoint, so that the name contains
    the id, and rewrites the tags. No data is copied. The first process that opens
    the store for writing does the same automatically. After an interruption, the
    same command continues.

    \b
    Example:
      ckstore migrate

    \b
    Exit status:
      0  done, or nothing to do
      2  wrong usage
      3  done, but a directory or a tag keeps its name, and a warning gives the reason
      4  no such store
    """
    out = frame.output()
    with frame.writing(recover=False) as store:
        report = store.migrate()
    out.document(report)
    out.line(f"renamed {counted(report.renamed_count, 'checkpoint')}, rewrote {counted(report.tag_count, 'tag')}")
    for text in report.left:
        out.warning(printable(text))
    return DamagedBlob.exit_status if report.left else 0
