"""``ckstore migrate``: convert a store that a draft of ckstore made."""

from __future__ import annotations

import click

from ckstore.errors import DamagedBlob
from ckstore.model.words import counted, printable
from ckstore_cli._frame import Frame, framed


@click.command()
@framed
def migrate(frame: Frame) -> int:
    """Convert a store that a draft of ckstore made.

    Each checkpoint gets a directory that is named after its id, and the tags name
    that. No data is copied. The first process that opens the store for writing does
    the same by itself. If it is interrupted, the same command continues.

    \b
    Example:
      ckstore migrate

    \b
    Exit status:
      0  done, or nothing to do
      2  wrong usage
      3  done, but a directory or a tag keeps its name; the warnings say why
      4  there is no such store
    """
    out = frame.output()
    with frame.writing(recover=False) as store:
        report = store.migrate()
    out.document(report)
    out.line(f"renamed {counted(report.renamed_count, 'checkpoint')}, rewrote {counted(report.tag_count, 'tag')}")
    for text in report.left:
        out.warning(printable(text))
    return DamagedBlob.exit_status if report.left else 0
