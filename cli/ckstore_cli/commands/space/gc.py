"""``ckstore gc``: free unused space, and name the processes that keep blobs open."""

from __future__ import annotations

from typing import Any

import click

from ckstore.errors import BadInput
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_run
from ckstore_cli._retention import policy_of, print_freed, rule_options, undo_hint


@click.command()
@rule_options
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=complete_run,
    help="Only drop checkpoints of this run. Default: all runs, each separately.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be dropped and freed, and change nothing.")
@click.option(
    "--exclusive",
    is_flag=True,
    help="Assert that no other host uses the store. On a shared filesystem, this frees at once.",
)
@click.option("--now", is_flag=True, help="Also free checkpoints that ckstore undo could restore.")
@framed
def gc(frame: Frame, /, run: str | None, dry_run: bool, exclusive: bool, now: bool, **rules: Any) -> None:
    """Free unused blobs, and name the processes that keep others open.

    gc may run at any time, even during saves and reads. It keeps a blob that a
    process has open and names the process, and a later gc frees the blob. If rules
    such as --keep-last are given, the command first drops the checkpoints that no
    rule keeps, like ckstore prune.

    On a shared filesystem such as NFS, Lustre or FUSE, gc cannot see processes of
    other hosts. Unused data then waits in trash/ for an hour, and a later gc frees it.
    --exclusive frees at once. --dry-run shows what --exclusive would free.

    \b
    Example:
      ckstore gc
      ckstore gc --now
      ckstore gc --keep-last 3 --dry-run
      ckstore gc --exclusive

    \b
    Exit status:
      0  done, with a warning if the space is not free yet
      2  wrong usage
      4  no such store
      5  another gc is running, and nothing was dropped
    """
    policy = policy_of(rules)
    if policy is None and run is not None:
        msg = f"--run {run} limits a retention policy to one run, and there is no policy"
        raise BadInput(msg, hint="give a rule, such as --keep-last 3, or omit --run")
    out = frame.output()
    # Opening the store for writing removes leftovers of killed saves. A dry run also does this, so that its plan equals
    # that of a real run.
    with frame.writing() as store:
        if policy is None:
            report = store.gc(dry_run=dry_run, exclusive=exclusive, now=now)
        else:
            report = store.prune(policy, run, dry_run=dry_run, exclusive=exclusive, now=now)
        hint = undo_hint(store, report, now=now)
    print_freed(out, report, hint)
