"""``ckstore verify``: verify checkpoints, report damage and repair it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckstore.errors import BadInput, DamagedBlob
from ckstore.model.reports.verify_report import details, summary
from ckstore.remote.verification import remote_verify_report
from ckstore_cli._compat import override
from ckstore_cli._frame import Frame, UserPath, framed
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref

_LOOKS = {"repaired": "green", "mended": "green", "note": "yellow"}


def _sample(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return the share that ``5%`` or ``0.05`` specifies."""
    if value is None:
        return None
    try:
        part = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        part = 0.0
    if not 0 < part <= 1:
        raise click.BadParameter(f"wanted a share such as 5% or 0.05, above 0 and at most 100%, got {value!r}")
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


class _PathOrUrl(UserPath):
    """A directory that exists, or the URL of a remote, which the library opens."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


@click.command()
@click.argument("ref", required=False, shell_complete=complete_ref)
@click.option(
    "--quick", is_flag=True, help="Read no data. Check sizes, times, links, names, the catalog and small files."
)
@click.option(
    "--sample",
    metavar="PART",
    callback=_sample,
    help="Read only this share of the blobs, such as 5% or 0.05, starting with those read longest ago.",
)
@click.option(
    "--budget",
    "budget_s",
    metavar="TIME",
    callback=_budget,
    help="Stop after this time, such as 10m or 2h. Starts with the blobs read longest ago.",
)
@click.option(
    "--rate", "rate_bytes_s", metavar="SIZE", callback=_rate, help="Maximum read rate per second, such as 200MB."
)
@click.option("--repair", is_flag=True, help="Move damaged blobs to quarantine/ and replace them by intact copies.")
@click.option(
    "--repair-from",
    metavar="PLACE",
    multiple=True,
    type=_PathOrUrl(exists=True, file_okay=False, path_type=Path),
    help="Also use intact copies from this store, directory, or URL of a remote. Repeatable.",
)
@click.option(
    "--remote",
    metavar="NAME",
    help="Verify the remote NAME instead of the store: read its manifests and blobs back.",
)
@click.option(
    "--export",
    "export",
    metavar="PATH",
    type=UserPath(exists=True, path_type=Path),
    help="Compare an export made with --sums, a directory or a torch file, with its SHA-256 sums. Needs no store.",
)
@framed
def verify(frame: Frame, ref: str | None, remote: str | None, export: Path | None, **options: Any) -> int:
    """Read all data of the checkpoint REF, or of all checkpoints, and report damage.

    The store records damage, so that latest-valid skips damaged checkpoints. A
    damaged checkpoint is replaced when its step is saved again. It is healed when
    the same bytes are saved anywhere, or by --repair if the store or one of its
    remotes has an intact copy.

    \b
    Example:
      ckstore verify
      ckstore verify latest
      ckstore verify --quick
      ckstore verify --budget 10m --rate 200MB
      ckstore verify --repair-from /mnt/backup
      ckstore verify --repair-from s3://bucket/run
      ckstore verify --remote cold --budget 10m
      ckstore verify --export out/

    \b
    Exit status:
      0  all checked data is intact, or was repaired
      2  wrong usage
      3  some data is damaged
      4  no such store, checkpoint or remote, or REF is ambiguous
    """
    if export is not None:
        if ref is not None or remote is not None or any(options.values()):
            raise click.UsageError("--export cannot be combined with REF or other options, since it reads no store")
        return _verify_export(frame, export)
    if remote is not None:
        if options.pop("repair") | bool(options.pop("repair_from")):
            raise click.UsageError("--remote cannot be combined with --repair, which repairs the store")
        return _verify_remote(frame, remote, ref, options)
    out = frame.output()
    with frame.writing() as store, Progress("verifying", quiet=out.as_json) as shown:
        report = store.verify(ref, progress=shown.at, **options)
        asks = bool(report.damage) and not (options["repair"] or options["repair_from"])
        remotes = [one.name for one in store.remotes] if asks else []
    out.document(report)
    for word, finding in details(report):
        out.headed(word, finding, _LOOKS.get(word, "red"))
    out.lines(summary(report))
    if remotes:
        out.note(f"ckstore verify --repair also uses intact copies from {', '.join(remotes)}")
    return 0 if report.ok else DamagedBlob.exit_status


def _verify_remote(frame: Frame, remote: str, ref: str | None, options: dict[str, Any]) -> int:
    out = frame.output()
    with frame.writing() as store, Progress("verifying", quiet=out.as_json) as shown:
        report = store.remotes.verify(remote, ref, progress=shown.at, **options)
    out.document(report)
    for found in report.damage:
        out.headed(found.word, str(found), "red")
    out.lines(remote_verify_report.summary(report))
    return 0 if report.ok else DamagedBlob.exit_status


def _verify_export(frame: Frame, path: Path) -> int:
    from ckstore.model.reports.export_report import check_summary
    from ckstore.store import Store

    out = frame.output()
    with Progress("verifying", quiet=out.as_json) as shown:
        check = Store.verify_export(path, progress=shown.at)
    out.document(check)
    for finding in check.damage:
        out.headed("damaged", str(finding), "red")
    out.lines([check_summary(check)])
    return 0 if check.ok else DamagedBlob.exit_status
