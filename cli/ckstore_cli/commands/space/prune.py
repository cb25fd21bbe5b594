"""``ckstore prune``: drop the checkpoints that no rule keeps."""

from __future__ import annotations

import click

from ckstore.errors import BadInput
from ckstore_cli._documents import to_json
from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._refs import complete_run
from ckstore_cli._retention import policy_of, print_outcome, print_plan, rule_options


@click.command()
@rule_options
@click.option(
    "--run", metavar="RUN", shell_complete=complete_run, help="Only this run. Default: every run, each by itself."
)
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@store_option
@json_option
@pass_frame
def prune(  # noqa: PLR0917 - one for each option
    frame: Frame,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: tuple[str, ...],
    keep_within: str | None,
    run: str | None,
    dry_run: bool,  # noqa: FBT001 - click's
) -> None:
    """Drop the checkpoints that no rule keeps, and say why for each.

    A checkpoint stays if any rule keeps it. Whatever the rules say, a checkpoint
    that has a tag, is pinned or open, or is the newest whole one of its run is
    never dropped. Without rules, the store's own policy applies. Run ckstore gc
    afterwards to free the space.

    \b
    Example:
      ckstore prune --keep-last 3 --keep-best loss --dry-run
      ckstore prune --keep-last 3 --keep-every 1000 --keep-best accuracy:max:2
      ckstore prune --keep-within 7d --run sweep-7

    \b
    Exit status:
      0  done, also when there was nothing to drop
      2  wrong usage, or no rule
      4  there is no such store
    """
    from ckstore.model.reports.retention_report import RetentionReport

    policy = policy_of(keep_last, keep_every, keep_best, keep_within)
    out = frame.output()
    # A plan needs no right to write, and must change nothing.
    with frame.reading() if dry_run else frame.writing() as store:
        # Without a rule every checkpoint but the newest would be dropped by a forgotten option.
        if policy is None and store.config.retention is None:
            raise BadInput(
                "no rule was given and the store has no policy: everything would be dropped",
                hint="give one: --keep-last, --keep-every, --keep-best or --keep-within",
            )
        plan = store.plan_retention(policy, run, shown_only=dry_run)
        print_plan(out, plan.entries)
        done = RetentionReport(plan) if dry_run else store.apply(plan)
    out.document({"dry_run": dry_run, **to_json(done)})
    print_outcome(out, done, dry_run=dry_run)
    if done.dropped:
        out.note("run ckstore gc to free the space")
