"""``ckstore report``: an HTML page about the store."""

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
    help="File to write. An existing file is replaced. Default: report.html.",
)
@framed
def report(frame: Frame, output: Path) -> None:
    """Write an HTML page about the store, which works without a network.

    The page shows the checkpoints of each run over time with their metrics, new and
    reused bytes, the disk usage of each run, the checkpoints that each rule keeps
    and drops, the changed and the largest tensors, and the findings of ckstore
    doctor. Nothing in the store is changed.

    \b
    Example:
      ckstore report -o report.html

    \b
    Exit status:
      0  done
      2  wrong usage, or the file cannot be written
      4  no such store
    """
    out = frame.output()
    with frame.reading() as store:
        made = store.report(output)
    out.document({"path": str(output), "nbytes": len(made.html.encode())})
    out.line(f"wrote {printable(str(output))}, {size_text(len(made.html.encode()))}")
