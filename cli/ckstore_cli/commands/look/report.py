"""``ckstore report``: a page about the store, to look at in a browser."""

from __future__ import annotations

from pathlib import Path

import click

from ckstore.model.sizes import size_text
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, UserPath, framed


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=UserPath(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    help="Where to write it; what is there is replaced. Default: report.html.",
)
@framed
def report(frame: Frame, output: Path) -> None:
    """Write a page of HTML about the store, which needs no network.

    It shows the checkpoints of each run over time with their metrics, new and
    reused bytes, what each run takes, what each rule keeps and would drop, which
    tensors changed, the largest ones, and what ckstore doctor finds. Nothing in
    the store is changed.

    \b
    Example:
      ckstore report -o report.html

    \b
    Exit status:
      0  done
      2  wrong usage, or the file cannot be written
      4  there is no such store
    """
    out = frame.output()
    with frame.reading() as store:
        made = store.report(output)
    out.document({"path": str(output), "nbytes": len(made.html.encode())})
    out.line(f"wrote {printable(str(output))}, {size_text(len(made.html.encode()))}")
