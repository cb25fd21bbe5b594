"""``ckstore runs``: the runs of a store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import click

from ckstore.model.manifest.info import RunSummary
from ckstore.model.reports.usage import RunUsage
from ckstore.model.sizes import size_text
from ckstore_cli._documents import to_json
from ckstore_cli._format import age_text, columns
from ckstore_cli._frame import Frame, framed

_SIZES = ("LOGICAL", "ALONE", "SHARED")
_HEAD = ("RUN", "CHECKPOINTS", "NEWEST", "AGE")


@click.command()
@click.option(
    "--sizes",
    is_flag=True,
    help="Also show the disk usage of each run, as ckstore du does. This reads the metadata of each blob.",
)
@framed
def runs(frame: Frame, sizes: bool) -> None:  # noqa: FBT001 - click's
    """List the runs of the store, the most recently saved first.

    NEWEST is the step of the checkpoint saved last. ckstore log --run RUN lists the
    checkpoints of a run, and ckstore du shows their disk usage.

    \b
    Example:
      ckstore runs
      ckstore runs --sizes
      ckstore runs --json | jq -r .run

    \b
    Exit status:
      0  done, even without any checkpoint
      2  wrong usage
      3  checkpoints exist, but all are incomplete
      4  no such store
    """
    out = frame.output()
    with frame.reading() as store:
        found = store.runs()[::-1]
        if not found:  # `latest` raises an error if all checkpoints are incomplete
            store.latest()
        held = {one.run: one for one in store.du().runs} if sizes else {}
    for one in found:
        size = held.get(one.name)
        out.document({**to_json(one), **({} if size is None else to_json(size))})
    if not found:
        out.note("no checkpoint yet")
        return
    now = datetime.now(UTC)
    rows = [
        (
            one.name,
            str(one.checkpoint_count),
            str(one.newest.step),
            age_text(one.newest.created, now),
            *_sizes(held, one),
        )
        for one in found
    ]
    head = (*_HEAD, *_SIZES) if sizes else _HEAD
    out.table(columns([head, *rows], "<" + ">" * (len(head) - 1)))


def _sizes(held: Mapping[str, RunUsage], run: RunSummary) -> tuple[str, ...]:
    size = held.get(run.name)
    if not held:
        return ()
    # A run has no size if all its checkpoints were deleted after the list of runs was read.
    return (
        ("", "", "")
        if size is None
        else tuple(map(size_text, (size.logical_bytes, size.alone_bytes, size.shared_bytes)))
    )
