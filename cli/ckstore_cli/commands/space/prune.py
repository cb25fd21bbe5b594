"""``ckstore prune``: drop the checkpoints that no rule keeps."""

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
    "--run", metavar="RUN", shell_complete=complete_run, help="Only this run. Default: all runs, each separately."
)
@click.option("--dry-run", is_flag=True, help="Show what would be dropped and freed, and change nothing.")
@click.option(
    "--now", is_flag=True, help="Free the space at once, so that ckstore undo cannot restore the checkpoints."
)
@framed
def prune(frame: Frame, /, run: str | None, dry_run: bool, now: bool, **rules: Any) -> None:
    """Drop the checkpoints that no rule keeps, show the reasons, and free the space.

    A checkpoint is kept if any rule keeps it. Checkpoints that are tagged,
    pinned or open are never dropped, and neither is the newest complete checkpoint
    of a run. Without rules, the command applies the policies and the budget of the
    store.

    ckstore undo can restore dropped checkpoints for a day (undo-by-hand of ckstore
    config).
    After that, or at once with --now, their space is freed in the same way as by
    ckstore gc. On a shared filesystem, only ckstore gc --exclusive frees space at
    once.

    \b
    Example:
      ckstore prune --keep-last 3 --keep-best loss --dry-run
      ckstore prune --keep-last 3 --keep-every 1000 --keep-best accuracy:max:2
      ckstore prune --keep-within 7d --run sweep-7
      ckstore prune --keep-daily 7 --keep-weekly 8 --max-bytes 500GB

    \b
    Exit status:
      0  done, with a warning if the space is not free yet
      2  wrong usage, or no rule
      4  no such store
      5  another gc is running, and nothing was dropped
    """
    policy = policy_of(rules)
    out = frame.output()
    # A plan changes nothing and needs no write permission.
    with frame.reading() if dry_run else frame.writing() as store:
        # A forgotten option must not drop every checkpoint but the newest.
        own = (store.config.retention, store.config.retention_by_run, store.config.budget)
        if policy is None and not any(own):
            raise BadInput(
                "no rule was given, and the store has no policy",
                hint="give a rule: --keep-last, --keep-every, --keep-best or --keep-within",
            )
        report = store.prune(policy, run, dry_run=dry_run, now=now)
        hint = undo_hint(store, report, now=now)
    print_freed(out, report, hint)
