"""``ckstore doctor``: check a store and its filesystem, with advice for each problem."""

from __future__ import annotations

from dataclasses import asdict

import click

from ckstore.fs.holders import deleted_but_open
from ckstore.model.doctor.finding import MARGIN, DoctorReport, summary
from ckstore.model.reports.held_blobs import DeletedFile
from ckstore.model.sizes import size_text
from ckstore.model.words import printable
from ckstore_cli._errors import FAILED
from ckstore_cli._format import columns, cut, wrap
from ckstore_cli._frame import Frame, framed
from ckstore_cli._output import Output


@click.command()
@click.option(
    "--leaks",
    is_flag=True,
    help="Only list deleted files that still use space, and the processes that have them open.",
)
@framed
def doctor(frame: Frame, leaks: bool) -> None:  # noqa: FBT001 - click's
    """Check a store and its filesystem, and show what to do about each problem.

    The command checks the filesystem, free space, features of the kernel,
    libraries, leftovers of killed saves, pins, owners and permissions. It tests
    hardlinks with temporary names, and changes nothing else in the store.

    With --leaks, the command lists the deleted files of any program that still use
    space. Their space becomes free when the programs close them. root sees all
    processes, and other users see only their own.

    \b
    Example:
      ckstore doctor
      ckstore doctor --leaks

    \b
    Exit status:
      0  no finding is an error, or --leaks is done
      1  a finding is an error, so the store cannot give one of its guarantees
      2  wrong usage
      4  no such store
    """
    out = frame.output()
    with frame.reading() as store:
        if leaks:
            _print_leaks(out, deleted_but_open(store.path.stat().st_dev))
            return
        report = store.doctor()
    _print(out, report)
    if not report.ok:
        raise click.exceptions.Exit(FAILED)


_LOOKS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def _print(out: Output, report: DoctorReport) -> None:
    out.documents(report.findings)
    margin = " " * MARGIN
    for finding in report.findings:
        level = out.style(finding.level.ljust(len(margin)), _LOOKS[finding.level])
        _print_wrapped(out, level, f"{finding.what}: {finding.found}", margin)
        if finding.do:
            _print_wrapped(out, margin, f"do: {finding.do}", margin)
    out.line(summary(report))


def _print_wrapped(out: Output, head: str, text: str, margin: str) -> None:
    words = printable(text).split(" ")
    lines = [" ".join(words)] if out.width is None else wrap(words, max(out.width - len(margin), 20))
    out.lines([f"{head}{lines[0]}", *(f"{margin}{line}" for line in lines[1:])])


def _print_leaks(out: Output, found: list[DeletedFile]) -> None:
    out.documents(map(asdict, found))
    found = [one for one in found if one.nbytes]
    if not found:
        out.line("no deleted file uses space")
        return
    rows = [
        (size_text(one.nbytes), str(who.pid), who.how, printable(who.command), printable(who.target))
        for one in found
        for who in {who.pid: who for who in reversed(one.holders)}.values()  # one line per process is enough
    ]
    head, *lines = columns([("SIZE", "PID", "HOW", "COMMAND", "FILE"), *rows], ">><<<")
    out.table([head, *(cut(line, out.width) for line in lines)])
    out.line(f"{size_text(sum(one.nbytes for one in found))} will be free when these processes close the files or end")
