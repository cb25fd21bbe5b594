"""``ckstore verify``: read every byte and say what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import DamagedBlob
from ckstore.model.names import plain
from ckstore_cli._format import printable, size_text
from ckstore_cli._frame import Frame, json_option, pass_frame, store_option
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref
from ckstore_cli._retention import checkpoints

if TYPE_CHECKING:
    from ckstore.model.verify_report import Damage, VerifyReport

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


@click.command()
@click.argument("ref", required=False, shell_complete=complete_ref)
@click.option("--sample", metavar="PART", callback=_sample, help="Read only this part, at random: 5% or 0.05.")
@store_option
@json_option
@pass_frame
def verify(frame: Frame, ref: str | None, sample: float | None) -> int:
    """Read every byte of the checkpoint REF, or of all, and say what is damaged.

    What is damaged is remembered: latest-valid passes over it. Saving the same
    step again replaces it.

    \b
    Example:
      ckstore verify
      ckstore verify latest
      ckstore verify --sample 5%

    \b
    Exit status:
      0  everything that was read is right
      2  wrong usage
      3  something is damaged
      4  there is no such store or checkpoint, or several fit
    """
    out = frame.output()
    with frame.writing() as store, Progress("verifying", quiet=out.as_json) as shown:

        def progress(done_bytes: int, all_bytes: int) -> None:
            shown.total_bytes = all_bytes
            shown.advance(done_bytes - shown.done_bytes)

        report = store.verify(ref, sample=sample, progress=progress)
    out.document(_document(report))
    for damage in report.damage:
        out.line(f"{out.style('damaged', 'red')}  {damage.checkpoint}  {_what(damage)}")
    out.line(_summary(report))
    return 0 if report.ok else DamagedBlob.exit_status


def _what(damage: Damage) -> str:
    what = printable(damage.what)
    if not damage.affects:
        return f"{what} (in a part that this checkpoint does not use)"
    names = [printable(plain(name)) or "(the state itself)" for name in damage.names[:_NAMES_SHOWN]]
    more = len(damage.names) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    return f"{listed}: {what}" if listed else what


def _summary(report: VerifyReport) -> str:
    read = f"{checkpoints(report.checkpoint_count)}, {size_text(report.checked_bytes)} read"
    if report.sample < 1:
        read += f" ({report.sample:.3%} of the blobs at random)".replace(".000%", "%")
    bad_count = len({damage.checkpoint for damage in report.damage})
    return f"{read}: {f'{bad_count} with damage' if bad_count else 'no damage'}"


def _document(report: VerifyReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "checkpoint_count": report.checkpoint_count,
        "checked_bytes": report.checked_bytes,
        "sample": report.sample,
        "damage": [
            {
                "run": damage.run,
                "step": damage.step,
                "names": list(damage.names),
                "blob": damage.blob,
                "what": damage.what,
                "affects": damage.affects,
            }
            for damage in report.damage
        ],
    }
