"""``ckstore evict``: free the local data of checkpoints that are stored on a remote."""

from __future__ import annotations

from typing import Any

import click

from ckstore.model.remote.transfer import details, summary
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_ref
from ckstore_cli._transfer import choice_options


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@choice_options
@click.option(
    "--rule",
    is_flag=True,
    help="Evict checkpoints on the mirror that the rules of ckstore config keep-local do not keep.",
)
@framed
def evict(frame: Frame, refs: tuple[str, ...], remote: str | None, dry_run: bool, **options: Any) -> None:
    """Free the local data of the checkpoints REF, which are stored on a remote.

    The checkpoints remain listed, and reads download the data that they need.
    ckstore pull downloads all of it again. Before local data is freed, the command
    verifies that the remote has every blob. A checkpoint that is open or not
    complete on the remote keeps its local data.

    \b
    Example:
      ckstore evict main@1000 main@2000
      ckstore evict --run sweep-7 --remote cold --dry-run
      ckstore evict --rule --dry-run

    \b
    Exit status:
      0  done, even if some checkpoints keep their local data
      1  the remote does not answer
      2  wrong usage
      4  no such store, checkpoint or remote
    """
    out = frame.output()
    with frame.reading() if dry_run else frame.writing() as store:
        report = store.evict(refs or None, remote, dry_run=dry_run, **options)
    out.document(report)
    out.lines([*details(report), summary(report)])
