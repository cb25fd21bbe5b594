"""``ckstore evict``: let go of local bytes that a remote has."""

from __future__ import annotations

from typing import Any

import click

from ckstore.model.reports.transfer import details, summary
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_ref
from ckstore_cli._transfer import choice_options


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@choice_options
@click.option("--rule", is_flag=True, help="Those that ckstore config keep-local does not keep here.")
@framed
def evict(frame: Frame, refs: tuple[str, ...], remote: str | None, dry_run: bool, **options: Any) -> None:
    """Let go of the local bytes of the checkpoints REF, which a remote has.

    They stay listed, and what reads them fetches what it needs. Before anything
    goes, every blob is compared at the remote. What is not there, or is open,
    keeps its bytes. ckstore pull brings them back.

    \b
    Example:
      ckstore evict main@1000 main@2000
      ckstore evict --run sweep-7 --remote cold --dry-run
      ckstore evict --rule --dry-run

    \b
    Exit status:
      0  done, also when some keep their bytes
      1  the remote does not answer
      2  wrong usage
      4  there is no such store, checkpoint or remote
    """
    out = frame.output()
    with frame.reading() if dry_run else frame.writing() as store:
        report = store.evict(refs or None, remote, dry_run=dry_run, **options)
    out.document(report)
    out.lines([*details(report), summary(report)])
