"""Retention on the command line: its options, and how a plan is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ckstore.model.words import printable
from ckstore_cli._format import columns, wrap
from ckstore_cli._output import Output

if TYPE_CHECKING:
    from ckstore.model.reports.retention_report import RetentionReport
    from ckstore.model.settings.retention import Best, RetentionPolicy
    from ckstore.model.settings.retention_plan import PlanEntry

F = TypeVar("F", bound=Callable[..., Any])

_HEAD = ("CHECKPOINT", "PLAN", "")
_BECAUSE = "BECAUSE"
_LEAST_COLUMNS = 30
_MODES = ("min", "max")


def rule_options(function: F) -> F:
    """Add the options that say a policy, see `policy_of`."""
    count = click.IntRange(min=1)
    for option in (
        click.option("--keep-within", metavar="TIME", help="Keep those saved in the last 90m, 36h, 7d …."),
        click.option(
            "--keep-best",
            metavar="METRIC[:min|max[:N]]",
            multiple=True,
            help="Keep the best, or the N best, by a metric; min by default. Repeatable.",
        ),
        click.option("--keep-every", metavar="N", type=count, help="Keep those whose step is a multiple of N."),
        click.option("--keep-last", metavar="N", type=count, help="Keep the N that were saved last."),
    ):
        function = option(function)
    return function


def options_of(policy: RetentionPolicy | None) -> str:
    """Return the options that say a policy; empty for none."""
    if policy is None:
        return ""
    rules = [("--keep-last", policy.keep_last), ("--keep-every", policy.keep_every)]
    words = [f"{name} {count}" for name, count in rules if count is not None]
    words += [f"--keep-best {best.metric}:{best.mode}:{best.n}" for best in policy.bests]
    if policy.keep_within is not None:
        within = policy.keep_within if isinstance(policy.keep_within, str) else f"{policy.keep_within}s"
        words.append(f"--keep-within {within}")
    return printable(" ".join(words))


def policy_of(
    keep_last: int | None, keep_every: int | None, keep_best: Sequence[str], keep_within: str | None
) -> RetentionPolicy | None:
    """Return the policy that the options say; None: they say none."""
    if keep_last is None and keep_every is None and not keep_best and keep_within is None:
        return None
    from ckstore.model.settings.retention import RetentionPolicy

    return RetentionPolicy(
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=[best_of(text) for text in keep_best] or None,
        keep_within=keep_within,
    )


def best_of(text: str) -> Best:
    """Return the rule that ``METRIC[:min|max[:n]]`` says; a colon in a metric's name needs the mode behind it.

    Raises:
        BadParameter: It cannot be read. A misspelt mode is never taken for a part of the name.
    """
    from ckstore.model.settings.retention import Best

    # From the right: names of metrics have colons, modes and counts have none.
    metric, *rest = text.rsplit(":", 2)
    if len(rest) == 2 and rest[0] not in _MODES:
        metric, rest = f"{metric}:{rest[0]}", rest[1:]
    count = rest[1] if len(rest) == 2 else "1"
    if not metric or (rest and rest[0] not in _MODES) or not count.isascii() or not count.isdigit():
        msg = f"wanted METRIC, METRIC:min, METRIC:max or METRIC:max:3, got {text!r}"
        raise click.BadParameter(msg, param_hint="--keep-best")
    return Best(metric, "max" if rest and rest[0] == "max" else "min", int(count))


def print_plan(out: Output, entries: Iterable[PlanEntry]) -> None:
    """Print a line for each checkpoint: whether it stays, and why; the oldest first."""
    entries = list(entries)
    if not entries:
        return
    head, *lines = columns(
        [_HEAD, *((entry.info.name, "keep" if entry.keep else "drop", "") for entry in entries)], "<<<"
    )
    out.line(out.style(f"{head}{_BECAUSE}", "dim"))
    for entry, line in zip(entries, lines, strict=True):
        words = _because(entry).split(" ")
        room = None if out.width is None else max(out.width - len(line), _LEAST_COLUMNS)
        first, *rest = [" ".join(words)] if room is None else wrap(words, room)
        out.line(line + first)
        for text in rest:
            out.line(" " * len(line) + text)


def _because(entry: PlanEntry) -> str:
    return printable("; ".join(entry.reasons))


def print_outcome(out: Output, report: RetentionReport, *, dry_run: bool) -> None:
    """Print how many checkpoints go, and warn of what the user may not expect."""
    from ckstore.model.reports.retention_report import outcome
    from ckstore.model.settings import retention_plan

    out.line(f"{retention_plan.outcome(report.plan)}; nothing was changed" if dry_run else outcome(report))
    for warning in (*report.plan.notes, *report.skipped):
        out.warning(printable(str(warning)))
