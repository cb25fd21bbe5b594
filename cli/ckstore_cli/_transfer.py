"""Options and output that push, pull and evict share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ckstore.model.remote.transfer import TransferReport
from ckstore.model.words import printable
from ckstore_cli._options import adding
from ckstore_cli._output import Output
from ckstore_cli._refs import complete_run

F = TypeVar("F", bound=Callable[..., Any])
_BWLIMIT = click.option("--bwlimit", metavar="SIZE", help="Maximum transfer rate per second, such as 50MiB.")


def _choice(remote: str) -> Callable[[F], F]:
    return adding(
        click.option("--all", is_flag=True, help="All checkpoints."),
        click.option("--tagged", is_flag=True, help="All checkpoints that have a tag."),
        click.option("--run", metavar="RUN", shell_complete=complete_run, help="All checkpoints of this run."),
        click.option("--remote", metavar="NAME", help=f"{remote}. Default: the only remote."),
        click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing."),
    )


choice_options = _choice("Name of a remote")
"""Adds the options of `ckstore.provisional.ChoiceOptions`, ``--remote`` and ``--dry-run``."""
push_options = adding(choice_options, _BWLIMIT)
"""Adds the options of `ckstore.provisional.TransferOptions`, ``--remote`` and ``--dry-run``."""
pull_options = adding(_choice("Name of a remote, or directory of a store"), _BWLIMIT)
"""Like `push_options`, but ``--remote`` may also be a store that is not a remote."""


def print_report(out: Output, report: TransferReport) -> None:
    """Print the report of a push or a pull, or of a dry run of one."""
    out.document(report)
    for info in report.new if report.dry_run else ():
        out.line(printable(f"new  {info}"))
    for text in report.warnings:
        out.warning(printable(text))
    out.line(str(report))
