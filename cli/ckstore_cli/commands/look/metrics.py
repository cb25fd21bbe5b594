"""``ckstore metrics``: what the store and its runs hold, for Prometheus."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ckstore_cli._frame import Frame, UserPath, pass_frame, store_option


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=UserPath(path_type=Path, dir_okay=False),
    help="Replace this file at once, as the textfile collector wants it. Default: print it.",
)
@store_option
@pass_frame
def metrics(frame: Frame, output: Path | None) -> None:
    """Print what the store and each run hold, as text of OpenMetrics.

    Of the store: the bytes that runs hold alone, those they share, those that gc
    frees, those that undo can bring back, and the free space. Of each run: how many
    checkpoints and bytes it has, how many checkpoints are damaged, and the newest
    step and its time.
    Run it from cron or a timer for the textfile collector of node_exporter.

    \b
    Example:
      ckstore metrics
      ckstore metrics -o /var/lib/node_exporter/ckstore.prom

    \b
    Exit status:
      0  done
      2  wrong usage, or the file cannot be written
      4  there is no such store
    """
    with frame.reading() as store:
        text = store.metrics(output)
    if output is None:
        sys.stdout.write(text)
    else:
        frame.output().line(f"wrote {os.fspath(output)}")
