"""``ckstore prune``: drop the checkpoints that no rule keeps."""

from __future__ import annotations

from typing import Any

import click

from ckstore.errors import BadInput
from ckstore.model.doctor.finding import age_words
from ckstore_cli._frame import Frame, framed
from ckstore_cli._freed import print_freed
from ckstore_cli._refs import complete_run
from ckstore_cli._retention import policy_of, rule_options


@click.command()
@rule_options
@click.option(
    "--run", metavar="RUN", shell_complete=complete_run, help="Only this run. Default: every run, each by itself."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped and freed.")
@click.option("--now", is_flag=True, help="Free at once what ckstore undo could bring back.")
@framed
def prune(frame: Frame, /, run: str | None, dry_run: bool, now: bool, **rules: Any) -> int:
    """Drop the checkpoints that no rule keeps, say why for each, and free the space.

    A checkpoint stays if any rule keeps it. Whatever the rules say, a checkpoint
    that has a tag, is pinned or open, or is the newest whole one of its run is
    never dropped. Without rules, the store's own policies and budget apply.

    For a day (see ckstore config undo) ckstore undo can bring back what was dropped;
    then its space is freed as ckstore gc does it, with --now at once. On a shared
    filesystem ckstore gc --exclusive frees at once.

    \b
    Example:
      ckstore prune --keep-last 3 --keep-best loss --dry-run
      ckstore prune --keep-last 3 --keep-every 1000 --keep-best accuracy:max:2
      ckstore prune --keep-within 7d --run sweep-7
      ckstore prune --keep-daily 7 --keep-weekly 8 --max-bytes 500GB

    \b
    Exit status:
      0  done; a warning says if the space is not free yet
      2  wrong usage, or no rule
      4  there is no such store
      5  another gc is running, and nothing was dropped
      7  done, but a process has some bytes open, or only another user's gc can free them
    """
    policy = policy_of(rules)
    out = frame.output()
    # A plan needs no right to write, and must change nothing.
    with frame.reading() if dry_run else frame.writing() as store:
        # Without a rule every checkpoint but the newest would be dropped by a forgotten option.
        own = (store.config.retention, store.config.retention_by_run, store.config.budget)
        if policy is None and not any(own):
            raise BadInput(
                "no rule was given and the store has no policy: everything would be dropped",
                hint="give one: --keep-last, --keep-every, --keep-best or --keep-within",
            )
        report = store.prune(policy, run, dry_run=dry_run, now=now)
        waits_s = 0 if now or store._context.shared else store.config.undo_by_hand_s  # noqa: SLF001
    status = print_freed(out, report)
    if dry_run and waits_s and report.retention is not None and report.retention.plan.dropped:
        out.note(
            f"ckstore undo could bring them back for {age_words(waits_s)}; then they are freed, with --now at once"
        )
    return status
