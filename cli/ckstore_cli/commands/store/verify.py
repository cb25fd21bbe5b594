"""``ckstore verify``: look at everything or read every byte, say what is damaged, and repair it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import BadInput, DamagedBlob
from ckstore.model.sizes import size_text
from ckstore_cli._format import printable
from ckstore_cli._frame import Frame, UserPath, json_option, pass_frame, store_option
from ckstore_cli._output import Output
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref
from ckstore_cli._retention import checkpoints

if TYPE_CHECKING:
    from ckstore.model.reports.verify_report import Damage, StoreFinding, VerifyReport

_NAMES_SHOWN = 5


def _sample(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return the part that ``5%`` or ``0.05`` means."""
    if value is None:
        return None
    try:
        part = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise click.BadParameter(f"wanted a part such as 5% or 0.05, above 0 and at most 100%, got {value!r}")
    return part


def _budget(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    from ckstore.model.times import duration_s

    try:
        return None if value is None else duration_s(value, "a budget")
    except BadInput as error:
        raise click.BadParameter(error.message) from error


def _rate(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    from ckstore.model.sizes import parse_size

    try:
        rate_bytes_s = None if value is None else parse_size(value.removesuffix("/s"))
    except BadInput as error:
        raise click.BadParameter(error.message) from error
    if rate_bytes_s == 0:
        raise click.BadParameter(f"wanted a rate above 0, got {value!r}")
    return rate_bytes_s


@click.command()
@click.argument("ref", required=False, shell_complete=complete_ref)
@click.option(
    "--quick", is_flag=True, help="Read no data; check sizes, times, links, names, the catalog and small files."
)
@click.option(
    "--sample",
    metavar="PART",
    callback=_sample,
    help="Read only this part, such as 5% or 0.05: the blobs read longest ago.",
)
@click.option(
    "--budget",
    metavar="TIME",
    callback=_budget,
    help="Stop after this time, such as 10m or 2h; read the blobs read longest ago first.",
)
@click.option("--rate", metavar="SIZE", callback=_rate, help="Read at most this much a second, such as 200MB.")
@click.option("--repair", is_flag=True, help="Move damaged blobs to quarantine/ and put intact copies in their place.")
@click.option(
    "--repair-from",
    metavar="PATH",
    multiple=True,
    type=UserPath(exists=True, file_okay=False, path_type=Path),
    help="Also take intact copies from this store or directory. Repeatable.",
)
@store_option
@json_option
@pass_frame
def verify(
    frame: Frame,
    ref: str | None,
    *,
    quick: bool,
    sample: float | None,
    budget: float | None,
    rate: int | None,
    repair: bool,
    repair_from: tuple[Path, ...],
) -> int:
    """Read every byte of the checkpoint REF, or of all, and say what is damaged.

    Damage is remembered: latest-valid skips damaged checkpoints. Saving the same
    step again replaces such a checkpoint; saving the same bytes anywhere heals
    it, and so does --repair if it finds an intact copy.

    \b
    Example:
      ckstore verify
      ckstore verify latest
      ckstore verify --quick
      ckstore verify --budget 10m --rate 200MB
      ckstore verify --repair-from /mnt/backup

    \b
    Exit status:
      0  everything that was checked is intact, or was repaired
      2  wrong usage
      3  something is damaged
      4  there is no such store or checkpoint, or several fit
    """
    out = frame.output()
    with frame.writing() as store, Progress("verifying", quiet=out.as_json) as shown:
        report = store.verify(
            ref,
            sample=sample,
            quick=quick,
            budget_s=budget,
            rate_bytes_s=rate,
            repair=repair,
            repair_from=repair_from,
            progress=shown.at,
        )
    out.document(_document(report))
    for line in _lines(report, out):
        out.line(line)
    return 0 if report.ok else DamagedBlob.exit_status


def _lines(report: VerifyReport, out: Output) -> Iterator[str]:
    for one in report.repaired:
        count = checkpoints(one.checkpoint_count)
        yield f"{out.style('repaired', 'green')}  {one.digest}  from {printable(one.source)}, for {count}"
    for lost in report.unrepaired:
        yield f"{out.style('not repaired', 'red')}  {lost.digest or 'manifest'}  {printable(lost.why)}"
    for damage in report.damage:
        yield f"{out.style('damaged', 'red')}  {damage.checkpoint}  {_what(damage)}"
    for found in report.findings:
        yield _finding(found, out)
    if report.damage:
        whole = report.checkpoint_count - len({found.checkpoint for found in report.damage if found.affects})
        yield f"{whole} of {checkpoints(report.checkpoint_count)} whole, as far as was read"
    if report.healable:
        count = f"{len(report.healable)} damaged blob{'s' if len(report.healable) != 1 else ''}"
        yield f"the store has right copies of {count}: ckstore verify --repair heals"
    for path in report.quarantined:
        yield f"moved aside: {printable(path)}"
    if report.mode == "sampled":
        yield _age(report)
    yield _summary(report)


def _what(damage: Damage) -> str:
    what = printable(damage.what)
    if not damage.affects:
        return f"{what} (in a part that this checkpoint does not use)"
    known = [*damage.names, *(path for path in damage.files if path not in damage.names)]
    names = [printable(name) or "(the state itself)" for name in known[:_NAMES_SHOWN]]
    more = len(known) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    return f"{listed}: {what}" if listed else what


def _finding(found: StoreFinding, out: Output) -> str:
    if found.mended:
        return f"{out.style('mended', 'green')}  {printable(found.what)}"
    word, look = ("wrong", "red") if found.harmful else ("note", "yellow")
    return f"{out.style(word, look)}  {printable(found.what)}"


def _age(report: VerifyReport) -> str:
    if report.unread_count:
        return f"{report.unread_count} of {report.blob_count} blobs were never read by a verification"
    return f"every blob was read since {report.oldest_check}" if report.oldest_check else "there are no blobs"


def _summary(report: VerifyReport) -> str:
    read = f"{checkpoints(report.checkpoint_count)}, {size_text(report.checked_bytes)} read"
    if report.mode == "quick":
        read = f"{checkpoints(report.checkpoint_count)}, no data read"
    elif report.mode == "sampled":
        read += f" ({report.read_count} of {report.blob_count} blobs{'' if report.in_time else ', then time was up'})"
    bad_count = len({damage.checkpoint for damage in report.damage})
    return f"{read}: {f'{bad_count} with damage' if bad_count else 'no damage'}"


def _document(report: VerifyReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "mode": report.mode,
        "checkpoint_count": report.checkpoint_count,
        "checked_bytes": report.checked_bytes,
        "sample": report.sample,
        "blob_count": report.blob_count,
        "read_count": report.read_count,
        "unread_count": report.unread_count,
        "oldest_check": report.oldest_check or None,
        "in_time": report.in_time,
        "whole": list(report.whole),
        "damage": [
            {
                "run": damage.run,
                "step": damage.step,
                "names": list(damage.names),
                "files": list(damage.files),
                "blob": damage.blob,
                "what": damage.what,
                "affects": damage.affects,
            }
            for damage in report.damage
        ],
        "findings": [
            {
                "kind": found.kind,
                "what": found.what,
                "subject": found.subject,
                "harmful": found.harmful,
                "mended": found.mended,
            }
            for found in report.findings
        ],
        "repaired": [
            {
                "digest": one.digest,
                "nbytes": one.nbytes,
                "source": one.source,
                "checkpoint_count": one.checkpoint_count,
            }
            for one in report.repaired
        ],
        "unrepaired": [{"digest": one.digest, "nbytes": one.nbytes, "why": one.why} for one in report.unrepaired],
        "quarantined": list(report.quarantined),
        "healable": list(report.healable),
    }
