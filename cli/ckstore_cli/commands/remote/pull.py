"""``ckstore pull``: bring checkpoints of a remote into the store."""

from __future__ import annotations

from typing import Any

import click

from ckstore_cli._frame import Frame, framed
from ckstore_cli._options import if_exists_option
from ckstore_cli._progress import Progress
from ckstore_cli._transfer import print_plan, print_report, pull_options


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1)
@pull_options
@if_exists_option("What to do if the store has another checkpoint of that run and step.")
@framed
def pull(
    frame: Frame, refs: tuple[str, ...], remote: str | None, if_exists: Any, dry_run: bool, **options: Any
) -> None:
    """Bring the checkpoints REF of a remote into the store; without REF the newest.

    A REF is looked up at the remote. Only what is missing here is fetched, and
    each blob is compared with its digest before it gets its name. A pull that
    was cut off goes on where it ended when it is made again.

    \b
    Example:
      ckstore pull
      ckstore pull best --remote cold
      ckstore pull main@1200 --remote /mnt/shared/store --dry-run

    \b
    Exit status:
      0  done: each checkpoint is whole here
      1  something is missing or damaged there, or another checkpoint is here
      2  wrong usage
      4  there is no such store, checkpoint or remote
      5  one is to be replaced that has a tag or a pin
      6  not enough space
    """
    out = frame.output()
    if dry_run:
        with frame.reading() as store:
            print_plan(out, store.plan_pull(refs or None, remote, **options))
        return
    with frame.writing() as store, Progress("pulling", quiet=out.as_json) as shown:
        print_report(out, store.pull(refs or None, remote, if_exists=if_exists, progress=shown.at, **options))
