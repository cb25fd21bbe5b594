"""What ``gc`` and ``prune`` print of what was dropped and freed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckstore.model.reports.gc_report import GcReport, lines
from ckstore.model.reports.held import HeldBlob, by_holder, held_size
from ckstore.model.words import printable
from ckstore_cli._documents import to_json
from ckstore_cli._errors import HELD
from ckstore_cli._format import columns, cut
from ckstore_cli._output import Output
from ckstore_cli._retention import print_outcome, print_plan

_UNSEEN = "?"


def print_freed(out: Output, report: GcReport) -> int:
    """Print what was dropped, if a policy was asked for, and freed; return the exit status."""
    dry_run = report.dry_run
    document: dict[str, Any] = {"dry_run": dry_run, "policy": None, "checkpoints": [], "skipped": [], "warnings": []}
    if report.retention is not None:
        document |= to_json(report.retention) if out.as_json else {}  # of 20,000 checkpoints it takes a while
        print_plan(out, report.retention.plan.entries)
        print_outcome(out, report.retention, dry_run=dry_run)
    measured = None if dry_run else report.filesystem_freed_bytes
    out.document({**document, **to_json(report, filesystem_freed_bytes=measured)})
    out.lines(lines(report, table=lambda held: [cut(row, out.width) for row in _holder_lines(held)]))
    return HELD if report.held else 0


def _holder_lines(held: Sequence[HeldBlob]) -> list[str]:
    rows = [
        ("  " + (_UNSEEN if pid is None else str(pid)), held_size(blobs), how, printable(command))
        for (pid, command), (how, blobs) in by_holder(held).items()
    ]
    return columns([("  PID", "SIZE", "HOW", "COMMAND"), *rows], "<><<")
