"""What push, pull and evict have in common: which checkpoints, where, how fast, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ckstore.model.reports.transfer import TransferPlan, TransferReport
from ckstore.model.words import printable
from ckstore_cli._options import adding
from ckstore_cli._output import Output
from ckstore_cli._refs import complete_run

F = TypeVar("F", bound=Callable[..., Any])
_BWLIMIT = click.option("--bwlimit", metavar="SIZE", help="At most this much a second, such as 50MiB.")


def _choice(remote: str) -> Callable[[F], F]:
    return adding(
        click.option("--all", is_flag=True, help="Every checkpoint."),
        click.option("--tagged", is_flag=True, help="Every checkpoint that has a tag."),
        click.option("--run", metavar="RUN", shell_complete=complete_run, help="Every checkpoint of this run."),
        click.option("--remote", metavar="NAME", help=f"{remote}. Default: the only remote."),
        click.option("--dry-run", is_flag=True, help="Change nothing; only say what would be done."),
    )


choice_options = _choice("The name of a remote")
"""Adds `ckstore.ChoiceOptions`, the remote, and whether to do it at all."""
push_options = adding(choice_options, _BWLIMIT)
"""Adds `ckstore.TransferOptions`, the remote, and whether to do it at all."""
pull_options = adding(_choice("The name of a remote, or the directory of a store"), _BWLIMIT)
"""As `push_options`; a store can also be read without being added as a remote."""


def print_plan(out: Output, plan: TransferPlan) -> None:
    """Print what would be moved."""
    out.document(plan)
    for info in plan.new:
        out.line(printable(f"new  {info}"))
    out.line(str(plan))


def print_report(out: Output, report: TransferReport) -> None:
    """Print what was moved."""
    out.document(report)
    for text in report.warnings:
        out.warning(printable(text))
    out.line(str(report))
