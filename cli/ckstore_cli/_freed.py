"""What ``gc`` and ``prune`` print of what was dropped and freed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ckstore.model.reports.gc_report import lines
from ckstore.model.reports.held import by_holder, held_size
from ckstore.model.words import printable
from ckstore_cli._errors import HELD
from ckstore_cli._format import columns, cut
from ckstore_cli._retention import print_outcome, print_plan, retention_document

if TYPE_CHECKING:
    from ckstore.model.reports.gc_report import GcReport
    from ckstore.model.reports.held import HeldBlob
    from ckstore_cli._output import Output

_UNSEEN = "?"


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
