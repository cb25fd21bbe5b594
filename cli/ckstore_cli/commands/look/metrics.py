"""``ckstore metrics``: what the store and its runs hold, for Prometheus."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ckstore_cli._frame import Frame, UserPath, framed


@click.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=UserPath(path_type=Path, dir_okay=False),
    help="Replace this file at once, as the textfile collector wants it. Default: print it.",
)
@framed
def metrics(frame: Frame, output: Path | None) -> None:
    """Print what the store and each run hold, as text of OpenMetrics.

    Of the store: the bytes that runs hold alone, those they share, those that gc
    frees, those that undo can bring back, and the free space. Of each run: how many
    checkpoints and bytes it has, how many checkpoints are damaged, and the newest
    step and its time.
    Run it from cron or a timer for the textfile collector of node_exporter. With
    --json it prints each sample as a line of JSON.

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
    out = frame.output()
    with frame.reading() as store:
        if output is None and out.as_json:
            from ckstore.ops.report.metrics import store_metrics

            for metric in store_metrics(store._context):  # noqa: SLF001 - the text is what is public
                for label, value in metric.samples.items():
                    out.document({"name": metric.name, "labels": {metric.label: label}, "value": value})
            return
        text = store.metrics(output)
    if output is None:
        sys.stdout.write(text)
    else:
        out.document({"path": os.fspath(output), "nbytes": len(text.encode())})
        out.line(f"wrote {os.fspath(output)}")
