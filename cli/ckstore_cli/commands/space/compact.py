"""``ckstore compact``: store checkpoints in less space, without loss."""

from __future__ import annotations

import click

from ckstore.errors import BadInput
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_ref, complete_run
from ckstore_cli._types import WholeNumber


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@click.option(
    "--run", metavar="RUN", shell_complete=complete_run, help="Only checkpoints of this run. Default: all runs."
)
@click.option(
    "--keep-newest",
    metavar="N",
    type=WholeNumber(min=1),
    default=3,
    show_default=True,
    help="Leave the newest N checkpoints of each run unchanged.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show which checkpoints would be encoded against which, and change nothing."
)
@framed
def compact(frame: Frame, refs: tuple[str, ...], run: str | None, keep_newest: int, dry_run: bool) -> None:
    """Store older checkpoints in less space, without loss.

    Most of their data is stored as differences to newer checkpoints. Ids and loaded
    data do not change, but loads take longer. Checkpoints that are tagged, pinned or
    in use are not compacted. Both this command and reading compacted checkpoints
    require pip install 'ckstore[compact]'.

    \b
    Example:
      ckstore compact --dry-run
      ckstore compact --run gpt --keep-newest 5

    \b
    Exit status:
      0  done, or nothing to do
      2  wrong usage
      4  no such store or checkpoint
    """
    if refs and run is not None:
        raise BadInput("REFs and --run were given", hint="give only one of them")
    out = frame.output()
    with frame.reading() if dry_run else frame.writing() as store:
        report = store.compact(refs, run, keep_newest=keep_newest, dry_run=dry_run)
    out.document(report)
    out.lines(map(printable, str(report).splitlines()))
