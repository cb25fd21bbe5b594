"""``ckstore push``: upload checkpoints to a remote."""

from __future__ import annotations

from typing import Any

import click

from ckstore_cli._frame import Frame, framed
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref
from ckstore_cli._transfer import print_report, push_options


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@push_options
@framed
def push(frame: Frame, refs: tuple[str, ...], remote: str | None, dry_run: bool, **options: Any) -> None:
    """Upload the checkpoints REF to a remote, by default the newest checkpoint.

    Only blobs that the remote lacks are uploaded. Metrics, tags, pins and notes are
    also uploaded. After an interruption, the same command continues the push.

    \b
    Example:
      ckstore push
      ckstore push best main@1200 --remote cold
      ckstore push --all --remote /mnt/shared/store --bwlimit 50MiB

    \b
    Exit status:
      0  done, and each checkpoint is complete on the remote
      1  the remote refused a request or did not answer
      2  wrong usage
      3  local data is damaged and was not uploaded
      4  no such store, checkpoint or remote
    """
    out = frame.output()
    if dry_run:
        with frame.reading() as store:
            print_report(out, store.push(refs or None, remote, dry_run=True, **options))
        return
    with frame.writing() as store, Progress("pushing", quiet=out.as_json) as shown:
        print_report(out, store.push(refs or None, remote, progress=shown.at, **options))
