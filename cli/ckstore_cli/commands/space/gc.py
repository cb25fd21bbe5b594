"""``ckstore gc``: give back the space that no checkpoint needs, and say who keeps what was not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import BadInput
from ckstore.model.reports.gc_report import lines
from ckstore.model.reports.held import by_holder, held_size
from ckstore.model.words import printable
from ckstore_cli._errors import HELD
from ckstore_cli._format import columns, cut
from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._refs import complete_run
from ckstore_cli._retention import policy_of, print_outcome, print_plan, retention_document, rule_options

if TYPE_CHECKING:
    from ckstore.model.reports.gc_report import GcReport
    from ckstore.model.reports.held import HeldBlob
    from ckstore_cli._output import Output

_UNSEEN = "?"


@click.command()
@rule_options
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Drop from this run only. Default: each run.")
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped and freed.")
@click.option(
    "--exclusive", is_flag=True, help="On a shared filesystem, free at once: no other host is using the store."
)
@store_option
@json_option
@pass_frame
def gc(  # noqa: PLR0917 - one for each option
    frame: Frame,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: tuple[str, ...],
    keep_within: str | None,
    run: str | None,
    dry_run: bool,  # noqa: FBT001 - click's
    exclusive: bool,  # noqa: FBT001 - click's
) -> int:
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
      ckstore gc --keep-last 3 --dry-run
      ckstore gc --exclusive

    \b
    Exit status:
      0  done, also when there was nothing to free
      2  wrong usage
      4  there is no such store
      5  another gc is running
      7  done, but a process has some bytes open, or only another user's gc can free them
    """
    policy = policy_of(keep_last, keep_every, keep_best, keep_within)
    if policy is None and run is not None:
        msg = f"--run {run} limits a retention policy to one run, and there is no policy"
        raise BadInput(msg, hint="give a rule, such as --keep-last 3, or leave --run out")
    out = frame.output()
    # The dry run opens the store as the real one does, which clears up what killed saves left: so both see the same.
    with frame.writing() as store:
        if policy is None:
            report = store.gc(dry_run=dry_run, exclusive=exclusive)
        else:
            report = store.prune(policy, run, dry_run=dry_run, exclusive=exclusive)
    return print_freed(out, report)


def print_freed(out: Output, report: GcReport) -> int:
    """Print what was dropped, if a policy was asked for, and freed; return the exit status."""
    dry_run = report.dry_run
    document: dict[str, Any] = {"dry_run": dry_run, "policy": None, "checkpoints": [], "skipped": [], "warnings": []}
    if report.retention is not None:
        document = retention_document(report.retention, dry_run=dry_run)
        print_plan(out, report.retention.plan.entries)
        print_outcome(out, report.retention, dry_run=dry_run)
    out.document({**document, **_document(report)})
    for line in lines(report, table=lambda held: [cut(row, out.width) for row in _holder_lines(held)]):
        out.line(line)
    return HELD if report.held else 0


def _holder_lines(held: Sequence[HeldBlob]) -> list[str]:
    rows = [
        (
            "  " + (_UNSEEN if pid is None else str(pid)),
            held_size(blobs),
            how,
            printable(command),
        )
        for (pid, command), (how, blobs) in by_holder(held).items()
    ]
    head, *lines = columns([("  PID", "SIZE", "HOW", "COMMAND"), *rows], "<><<")
    return [head, *lines]


def _document(report: GcReport) -> dict[str, Any]:
    """Return the report; a dry run measures nothing, so that those numbers are null."""
    return {
        "freed_bytes": report.freed_bytes,
        "freed_count": report.freed_count,
        "filesystem_freed_bytes": None if report.dry_run else report.filesystem_freed_bytes,
        "held_bytes": report.held_bytes,
        "held": [
            {
                "digest": blob.digest,
                "nbytes": blob.nbytes,
                "why": blob.why,
                "holders": [{"pid": one.pid, "command": one.command, "how": one.how} for one in blob.holders],
            }
            for blob in report.held
        ],
        "linked_elsewhere": [
            {"digest": one.digest, "nbytes": one.nbytes, "name_count": one.name_count}
            for one in report.linked_elsewhere
        ],
        "dead_pack_bytes": report.dead_pack_bytes,
        "catalog_bytes": report.catalog_bytes,
        "explanation": report.explanation,
    }
