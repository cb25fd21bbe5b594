"""``ckstore push``: bring checkpoints to a remote."""

from __future__ import annotations

from typing import Any

import click

from ckstore_cli._frame import Frame, framed
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref
from ckstore_cli._transfer import print_plan, print_report, push_options


@click.command()
@click.argument("refs", metavar="[REF]...", nargs=-1, shell_complete=complete_ref)
@push_options
@framed
def push(frame: Frame, refs: tuple[str, ...], remote: str | None, dry_run: bool, **options: Any) -> None:
    """Bring the checkpoints REF to a remote; without REF the newest.

    Only what is missing there is sent. Metrics, tags, pins and annotations come
    along. A push that was cut off goes on where it ended when it is made again.

    \b
    Example:
      ckstore push
      ckstore push best main@1200 --remote cold
      ckstore push --all --remote /mnt/shared/store --bwlimit 50MiB

    \b
    Exit status:
      0  done: each checkpoint is whole there
      1  the remote refused something, or did not answer
      2  wrong usage
      3  bytes are damaged here; they were not sent
      4  there is no such store, checkpoint or remote
    """
    out = frame.output()
    if dry_run:
        with frame.reading() as store:
            print_plan(out, store.plan_push(refs or None, remote, **options))
        return
    with frame.writing() as store, Progress("pushing", quiet=out.as_json) as shown:
        print_report(out, store.push(refs or None, remote, progress=shown.at, **options))
