"""``ckstore pull``: download checkpoints from a remote."""

from __future__ import annotations

from typing import Any

import click

from ckstore_cli._frame import Frame, framed
from ckstore_cli._options import if_exists_option
from ckstore_cli._progress import Progress
from ckstore_cli._transfer import print_report, pull_options


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1)
@pull_options
@if_exists_option("What to do if the store has another checkpoint at the same run and step.")
@framed
def pull(
    frame: Frame, refs: tuple[str, ...], remote: str | None, if_exists: Any, dry_run: bool, **options: Any
) -> None:
    """Download the checkpoints REF from a remote, by default the newest checkpoint.

    A REF names a checkpoint on the remote. Only blobs that are missing locally are
    downloaded, and each is verified. After an interruption, the same command
    continues the pull.

    \b
    Example:
      ckstore pull
      ckstore pull best --remote cold
      ckstore pull main@1200 --remote /mnt/shared/store --dry-run

    \b
    Exit status:
      0  done, and each checkpoint is complete locally
      1  data is missing or damaged on the remote, or the step has another checkpoint
      2  wrong usage
      4  no such store, checkpoint or remote
      5  a checkpoint to replace has a tag or a pin
      6  not enough space
    """
    out = frame.output()
    if dry_run:
        with frame.reading() as store:
            print_report(out, store.pull(refs or None, remote, if_exists=if_exists, dry_run=True, **options))
        return
    with frame.writing() as store, Progress("pulling", quiet=out.as_json) as shown:
        print_report(out, store.pull(refs or None, remote, if_exists=if_exists, progress=shown.at, **options))
