"""``ckstore metrics``: metrics of the store and its runs, for Prometheus."""

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
    help="Write to this file and replace it atomically, as the textfile collector requires. Default: print to stdout.",
)
@framed
def metrics(frame: Frame, output: Path | None) -> None:
    """Print metrics of the store and of each run in the OpenMetrics format.

    The metrics of the store are the bytes of blobs by use (alone for one checkpoint,
    shared by several, unused until the next gc, waiting for undo), the free space,
    and the state of the mirror. The metrics of a run are its number of checkpoints,
    their size, the number of damaged ones, and the step and time of the newest. Run
    the command from cron or a timer for the textfile collector of node_exporter.
    With --json, each sample is a line of JSON.

    \b
    Example:
      ckstore metrics
      ckstore metrics -o /var/lib/node_exporter/ckstore.prom

    \b
    Exit status:
      0  done
      2  wrong usage, or the file cannot be written
      4  no such store
    """
    out = frame.output()
    with frame.reading() as store:
        if output is None and out.as_json:
            from ckstore.ops.report.metrics import store_metrics
            from ckstore.remote.remote_report import mirror_metrics

            for metric in store_metrics(store._context, mirror_metrics):  # noqa: SLF001 - only the text is public
                for label, value in metric.samples.items():
                    out.document({"name": metric.name, "labels": {metric.label: label}, "value": value})
            return
        text = store.metrics(output)
    if output is None:
        sys.stdout.write(text)
    else:
        out.document({"path": os.fspath(output), "nbytes": len(text.encode())})
        out.line(f"wrote {os.fspath(output)}")
