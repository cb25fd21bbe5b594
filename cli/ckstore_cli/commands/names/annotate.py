"""``ckstore annotate``: add metrics and a note to a saved checkpoint."""

from __future__ import annotations

import click

from ckstore.model.words import printable
from ckstore_cli._documents import to_json
from ckstore_cli._frame import Frame, framed
from ckstore_cli._options import metric_option
from ckstore_cli._refs import complete_ref


@click.command()
@click.argument("ref", shell_complete=complete_ref)
@metric_option
@click.option("--note", "-m", metavar="TEXT", help="A note, which ckstore show lists after earlier notes.")
@framed
def annotate(frame: Frame, ref: str, metrics: dict[str, float], note: str | None) -> None:
    """Add metrics and a note to the checkpoint REF.

    Use it for the metrics of an evaluation, for example. ckstore log shows them,
    and --keep-best uses them. A new value of a metric replaces the old value.

    \b
    Example:
      ckstore annotate main@1200 --metric accuracy=0.91 --note 'evaluated on v2'

    \b
    Exit status:
      0  done, and the metrics and the note survive a power cut
      2  wrong usage, or nothing to add
      4  no such store or checkpoint, or REF is ambiguous
      5  another process is deleting the checkpoint
    """
    out = frame.output()
    with frame.writing() as store:
        info = store.annotate(ref, metrics, note)
    out.document({**to_json(info), "notes": info.notes})
    added = [f"{printable(name)} = {value!r}" for name, value in metrics.items()] + ["a note"] * (note is not None)
    out.line(f"added to {printable(info.shown)}: {', '.join(added)}")
