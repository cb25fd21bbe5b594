"""``ckstore why``: the checkpoints and tensors that use a blob."""

from __future__ import annotations

import click

from ckstore.model.reports.usage import DEAD_PART
from ckstore.model.words import named
from ckstore_cli._format import columns_with_names
from ckstore_cli._frame import Frame, framed


@click.command()
@click.argument("blob")
@framed
def why(frame: Frame, blob: str) -> None:
    """List the checkpoints and tensors that use BLOB.

    BLOB is the name of a file in blobs/, or 6 or more of its digits. For a
    compacted checkpoint, HOW says whether it stores these bytes encoded or uses
    them as the base of a difference, and gives the size on the disk and the full
    size.

    \b
    Example:
      ckstore why xxh3-8f7c1c4bfa0e6f1c2d7a1be6c8a3f5d1
      ckstore why 8f7c1c

    \b
    Exit status:
      0  done, even if no checkpoint uses the blob
      2  wrong usage
      4  no such store or blob, or BLOB is ambiguous
    """
    out = frame.output()
    with frame.reading() as store:
        uses = store.why(blob)
    out.documents(uses)
    if not uses:
        out.note("no checkpoint uses it; ckstore gc frees it")
        return
    rows = []
    for use in uses:
        rows += [(use.place, use.words, named(name)) for name in use.names or (DEAD_PART,)]
    if any(use.words for use in uses):
        out.table(columns_with_names([("CHECKPOINT", "HOW", "NAME"), *rows], "<<<", out.width))
    else:
        out.table(columns_with_names([("CHECKPOINT", "NAME"), *((row[0], row[2]) for row in rows)], "<<", out.width))
