"""``ckstore prune``: drop the checkpoints that no rule keeps."""

from __future__ import annotations

import click

from ckstore.errors import BadInput
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
@framed
def prune(  # noqa: PLR0917 - one for each option
    frame: Frame,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: tuple[str, ...],
    keep_within: str | None,
    run: str | None,
    dry_run: bool,  # noqa: FBT001 - click's
) -> int:
    """Drop the checkpoints that no rule keeps, say why for each, and free the space.

    A checkpoint stays if any rule keeps it. Whatever the rules say, a checkpoint
    that has a tag, is pinned or open, or is the newest whole one of its run is
    never dropped. Without rules, the store's own policy applies. The space is freed
    as ckstore gc does it; on a shared filesystem ckstore gc --exclusive frees at once.

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
      5  another gc is running: nothing was freed
      7  done, but a process has some bytes open, or only another user's gc can free them
    """
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
        report = store.prune(policy, run, dry_run=dry_run)
    return print_freed(out, report)
