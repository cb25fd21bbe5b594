"""``ckstore compact``: keep checkpoints in less space, without loss."""

from __future__ import annotations

import click

from ckstore.errors import BadInput
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_ref, complete_run


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Only this run. Default: every run.")
@click.option(
    "--keep-newest",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Leave the newest N of each run as they are.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be encoded against what.")
@framed
def compact(frame: Frame, refs: tuple[str, ...], run: str | None, keep_newest: int, dry_run: bool) -> None:
    """Keep older checkpoints in less space, without loss.

    Most of their bytes become differences to newer ones; ids and what is loaded
    stay the same, and loads take longer. Checkpoints that have a tag, are pinned
    or in use stay as they are. It needs pip install 'ckstore[compact]'; so does
    reading what was compacted.

    \b
    Example:
      ckstore compact --dry-run
      ckstore compact --run gpt --keep-newest 5

    \b
    Exit status:
      0  done, also when there was nothing to do
      2  wrong usage
      4  there is no such store or checkpoint
    """
    if refs and run is not None:
        raise BadInput("refs and --run were given", hint="give one of them")
    out = frame.output()
    with frame.reading() if dry_run else frame.writing() as store:
        report = store.compact(refs, run, keep_newest=keep_newest, dry_run=dry_run)
    out.document(report)
    out.lines(map(printable, str(report).splitlines()))
