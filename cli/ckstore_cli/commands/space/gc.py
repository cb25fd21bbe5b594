"""``ckstore gc``: give back the space that no checkpoint needs, and say who keeps what was not."""

from __future__ import annotations

from typing import Any

import click

from ckstore.errors import BadInput
from ckstore_cli._frame import Frame, framed
from ckstore_cli._freed import print_freed
from ckstore_cli._refs import complete_run
from ckstore_cli._retention import policy_of, rule_options


@click.command()
@rule_options
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Drop from this run only. Default: each run.")
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped and freed.")
@click.option(
    "--exclusive", is_flag=True, help="On a shared filesystem, free at once: no other host is using the store."
)
@click.option("--now", is_flag=True, help="Free at once what ckstore undo could bring back.")
@framed
def gc(frame: Frame, /, run: str | None, dry_run: bool, exclusive: bool, now: bool, **rules: Any) -> int:
    """Free what no checkpoint needs, and name the processes that hold the rest.

    Run it at any time: saves and readers go on. A blob that a process has open
    is not freed; gc names the process, and a later gc frees the blob. With a
    rule (--keep-last and the like) it is ckstore prune, which first drops the
    checkpoints that no rule keeps.

    On a shared filesystem (NFS, Lustre, FUSE ...) gc cannot see other hosts. There
    it frees what has not been touched for an hour; --exclusive frees at once and
    says that no other host uses the store. --dry-run shows what --exclusive
    would free.

    \b
    Example:
      ckstore gc
      ckstore gc --now
      ckstore gc --keep-last 3 --dry-run
      ckstore gc --exclusive

    \b
    Exit status:
      0  done; a warning says if the space is not free yet
      2  wrong usage
      4  there is no such store
      5  another gc is running, and nothing was dropped
      7  done, but a process has some bytes open, or only another user's gc can free them
    """
    policy = policy_of(rules)
    if policy is None and run is not None:
        msg = f"--run {run} limits a retention policy to one run, and there is no policy"
        raise BadInput(msg, hint="give a rule, such as --keep-last 3, or leave --run out")
    out = frame.output()
    # The dry run opens the store as the real one does, which clears up what killed saves left: so both see the same.
    with frame.writing() as store:
        if policy is None:
            report = store.gc(dry_run=dry_run, exclusive=exclusive, now=now)
        else:
            report = store.prune(policy, run, dry_run=dry_run, exclusive=exclusive, now=now)
    return print_freed(out, report)
