"""What push, pull and evict have in common: which checkpoints, where, how fast, and what is said of it."""

from __future__ import annotations

import click

from ckstore.model.reports.transfer import TransferPlan, TransferReport
from ckstore.model.words import printable
from ckstore_cli._options import adding
from ckstore_cli._output import Output
from ckstore_cli._refs import complete_run

choice_options = adding(
    click.option("--all", is_flag=True, help="Every checkpoint."),
    click.option("--tagged", is_flag=True, help="Every checkpoint that has a tag."),
    click.option("--run", metavar="RUN", shell_complete=complete_run, help="Every checkpoint of this run."),
    click.option(
        "--remote",
        metavar="NAME",
        help="The name of a remote. Default: the only remote. To read: also the directory of a store.",
    ),
    click.option("--dry-run", is_flag=True, help="Change nothing; only say what would be done."),
)
"""Adds `ckstore.ChoiceOptions`, the remote, and whether to do it at all."""
transfer_options = adding(
    choice_options, click.option("--bwlimit", metavar="SIZE", help="At most this much a second, such as 50MiB.")
)
"""Adds `ckstore.TransferOptions`, the remote, and whether to do it at all."""


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
