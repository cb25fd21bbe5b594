"""Retention on the command line: the options of a policy, and the output of a plan and of the freed space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import BadInput
from ckstore.model.best import best_of
from ckstore.model.doctor.finding import age_words
from ckstore.model.reports.gc_report import GcReport
from ckstore.model.reports.gc_report import lines as freed_lines
from ckstore.model.reports.held_blobs import HeldBlob, by_holder, held_size
from ckstore.model.reports.retention_report import RetentionReport, outcome
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import PlanEntry
from ckstore.model.settings.retention_plan import outcome as plan_outcome
from ckstore.model.sizes import exact_size
from ckstore.model.times import duration_s
from ckstore.model.words import printable
from ckstore_cli._documents import to_json
from ckstore_cli._format import columns, cut, wrap
from ckstore_cli._options import adding
from ckstore_cli._output import Output
from ckstore_cli._types import WholeNumber

if TYPE_CHECKING:
    from ckstore.store import Store

_HEAD = ("CHECKPOINT", "PLAN", "")
_BECAUSE = "BECAUSE"
_LEAST_COLUMNS = 30
_UNSEEN = "?"


_COUNT = WholeNumber(min=1)

rule_options = adding(
    click.option("--keep-last", metavar="N", type=_COUNT, help="Keep the N checkpoints saved last."),
    click.option("--keep-every", metavar="N", type=_COUNT, help="Keep checkpoints whose step is a multiple of N."),
    click.option(
        "--keep-nearest", metavar="N", type=_COUNT, help="Keep the checkpoint nearest to each multiple of N steps."
    ),
    click.option(
        "--keep-best",
        metavar="METRIC[:min|max[:N]]",
        multiple=True,
        help="Keep the best checkpoint by a metric, or the N best. Without min or max, a metric named like a loss "
        "means min, and one named like a score means max. Repeatable.",
    ),
    click.option(
        "--keep-hourly", metavar="N", type=_COUNT, help="Keep the newest checkpoint of each of the last N hours."
    ),
    click.option(
        "--keep-daily", metavar="N", type=_COUNT, help="Keep the newest checkpoint of each of the last N days."
    ),
    click.option(
        "--keep-weekly", metavar="N", type=_COUNT, help="Keep the newest checkpoint of each of the last N weeks."
    ),
    click.option(
        "--keep-within", metavar="TIME", help="Keep checkpoints saved within this time, such as 90m, 36h or 7d."
    ),
    click.option(
        "--max-bytes",
        metavar="SIZE",
        help="Maximum size of a run, such as 500GB. Above it, drop its oldest checkpoints.",
    ),
    click.option("--low-bytes", metavar="SIZE", help="When --max-bytes is exceeded, drop down to this size."),
)
"""Adds the options of a retention policy (see `policy_of`)."""


def options_of(policy: RetentionPolicy | None) -> str:
    """Return the options that specify a policy, or an empty string without one."""
    if policy is None:
        return ""
    words = []
    for name, value in policy.to_json().items():
        option = f"--{name.replace('_', '-')}"
        if name == "keep_best":
            words += [f"{option} {best.metric}:{best.mode}:{best.n}" for best in policy.bests]
        elif name == "keep_within" and not isinstance(value, str):
            words.append(f"{option} {value}s")
        else:
            words.append(f"{option} {exact_size(value) if name.endswith('_bytes') else value}")
    return printable(" ".join(words))


def policy_of(rules: Mapping[str, Any]) -> RetentionPolicy | None:
    """Return the policy that the options of `rule_options` specify, or None if none of them was given."""
    given = {name: value for name, value in rules.items() if value not in (None, ())}
    if not given:
        return None
    if "keep_best" in given:
        try:
            given["keep_best"] = [best_of(text) for text in given["keep_best"]]
        except BadInput as error:
            raise click.BadParameter(str(error), param_hint="--keep-best") from error  # includes the hint
    if "keep_within" in given:
        duration_s(given["keep_within"], "--keep-within")  # otherwise the error would name a Python argument
    return RetentionPolicy(**given)


def print_plan(out: Output, entries: Iterable[PlanEntry]) -> None:
    """Print whether each checkpoint is kept, and the reasons, the oldest checkpoint first."""
    entries = list(entries)
    if not entries:
        return
    head, *lines = columns(
        [_HEAD, *((entry.info.name, "keep" if entry.keep else "drop", "") for entry in entries)], "<<<"
    )
    out.line(out.style(f"{head}{_BECAUSE}", "dim"))
    for entry, line in zip(entries, lines, strict=True):
        words = printable("; ".join(entry.reasons)).split(" ")
        room = None if out.width is None else max(out.width - len(line), _LEAST_COLUMNS)
        first, *rest = [" ".join(words)] if room is None else wrap(words, room)
        out.lines([line + first, *(" " * len(line) + text for text in rest)])


def print_outcome(out: Output, report: RetentionReport) -> None:
    """Print how many checkpoints are dropped, and the warnings of the plan."""
    out.line(f"{plan_outcome(report.plan)}; nothing was changed" if report.dry_run else outcome(report))
    for warning in (*report.plan.notes, *report.skipped):
        out.warning(printable(str(warning)))


def undo_hint(store: Store, report: GcReport, *, now: bool) -> str:
    """Return for how long the checkpoints that a dry run would drop could be restored, or an empty string."""
    undo_s = 0 if now or not store._context.view.frees_at_once else store.config.undo_by_hand_s  # noqa: SLF001
    if not (report.dry_run and report.dropped and undo_s):
        return ""
    return f"ckstore undo could restore them for {age_words(undo_s)}; --now would free their space at once"


def print_freed(out: Output, report: GcReport, hint: str) -> None:
    """Print the plan, if there was a policy, the freed space, and a hint if it is not empty."""
    dry_run = report.dry_run
    document: dict[str, Any] = {"dry_run": dry_run, "policy": None, "checkpoints": [], "skipped": [], "warnings": []}
    if report.retention is not None:
        document |= to_json(report.retention) if out.as_json else {}  # slow with 20,000 checkpoints
        print_plan(out, report.retention.plan.entries)
        print_outcome(out, report.retention)
    measured = None if dry_run else report.filesystem_freed_bytes
    out.document({**document, **to_json(report, filesystem_freed_bytes=measured)})

    def table(held: Sequence[HeldBlob]) -> list[str]:
        rows = [
            ("  " + (_UNSEEN if pid is None else str(pid)), held_size(blobs), how, printable(command))
            for (pid, command), (how, blobs) in by_holder(held).items()
        ]
        return [cut(row, out.width) for row in columns([("  PID", "SIZE", "HOW", "COMMAND"), *rows], "<><<")]

    out.lines(freed_lines(report, table=table))
    if hint:
        out.note(hint)
