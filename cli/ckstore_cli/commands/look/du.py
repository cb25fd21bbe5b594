"""``ckstore du``: the disk usage of runs, or of the checkpoints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ckstore.errors import BadInput
from ckstore.model.reports.usage import summary
from ckstore.model.sizes import size_text
from ckstore_cli._documents import to_json
from ckstore_cli._format import columns
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_run, no_such_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckstore.model.reports.usage import CheckpointUsage, RunUsage
    from ckstore_cli._output import Output

_SIZES = ("LOGICAL", "ALONE", "SHARED", "PACKED")


@click.command()
@click.argument("run", required=False, shell_complete=complete_run)
@click.option(
    "--run", "also", metavar="RUN", shell_complete=complete_run, help="Same as the argument RUN, as in other commands."
)
@framed
def du(frame: Frame, run: str | None, also: str | None) -> None:
    """Show the disk usage of each run, or of each checkpoint of RUN.

    LOGICAL is the size of the data without sharing. ALONE is the size of blobs that
    only this run or checkpoint uses, which deleting it frees. SHARED is the share of
    this run or checkpoint in blobs that others also use, such as a third of a blob
    in three checkpoints. Each of these columns adds up to its TOTAL. PACKED is data
    that only this run or checkpoint uses, in packs of small tensors that others
    need. Deleting it does not free that data. The largest ALONE comes first. In a
    store with one run, the command shows the checkpoints of this run.

    \b
    Example:
      ckstore du
      ckstore du sweep-7
      ckstore du --json | jq .disk_bytes

    \b
    Exit status:
      0  done
      2  wrong usage
      4  no such store or run
    """
    if run is not None and also is not None:
        raise BadInput("RUN and --run were given", hint="give only one of them")
    run = also if run is None else run
    out = frame.output()
    with frame.reading() as store:
        usage = store.du()
        chosen = usage.runs if run is None else [one for one in usage.runs if one.run == run]
        if run is not None and not chosen:
            raise no_such_run(store.path, run)
    if run is not None:
        out.document({**to_json(chosen[0]), "checkpoints": chosen[0].checkpoints})
    else:
        out.document(usage)
    if len(chosen) == 1:
        _print_checkpoints(out, chosen[0])
    elif chosen:
        rows = [(one.run, str(one.checkpoint_count), *_sizes([one]), size_text(one.packed_bytes)) for one in chosen]
        total = ("TOTAL", str(len(usage.checkpoints)), *_sizes(chosen), "")
        out.table(columns([("RUN", "CHECKPOINTS", *_SIZES), *rows, total], "<>>>>>"))
    if run is None:
        if chosen:
            out.line()
        out.lines(summary(usage))


def _print_checkpoints(out: Output, run: RunUsage) -> None:
    ordered = sorted(run.checkpoints, key=lambda one: (-one.alone_bytes, -one.shared_bytes))
    rows = [(one.shown, *_sizes([one]), size_text(one.packed_bytes)) for one in ordered]
    out.table(columns([("CHECKPOINT", *_SIZES), *rows, ("TOTAL", *_sizes(ordered), "")], "<>>>>"))
    between = run.alone_bytes - sum(one.alone_bytes for one in ordered)
    more = f"; several of its checkpoints share {size_text(between)} of this" if between else ""
    out.line()
    out.line(f"deleting the run {run.run} frees {size_text(run.alone_bytes)}{more}")


def _sizes(held: Sequence[RunUsage] | Sequence[CheckpointUsage]) -> tuple[str, str, str]:
    """Return the cells of the three columns that have a total. With several items, return their sums."""
    return (
        size_text(sum(one.logical_bytes for one in held)),
        size_text(sum(one.alone_bytes for one in held)),
        size_text(sum(one.shared_bytes for one in held)),
    )
