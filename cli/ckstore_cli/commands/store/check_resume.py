"""``ckstore check-resume``: check that a training continues exactly after a resume."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ckstore.errors import BadInput, CkstoreError, MissingExtra
from ckstore_cli._frame import Frame, UserPath, json_option, pass_frame
from ckstore_cli._types import Number, OneOf, WholeNumber


def _timeout(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    from ckstore.model.times import duration_s

    try:
        return duration_s(value, "a timeout")
    except BadInput as error:
        raise click.BadParameter(error.message) from error


@click.command("check-resume")
@click.argument("loop", metavar="MODULE:FUNCTION")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.option(
    "--profile",
    type=OneOf(["exact", "tolerant"]),
    default="exact",
    show_default=True,
    help="exact requires the same bits. tolerant requires losses and tensors within --rtol and --atol.",
)
@click.option("--steps", type=WholeNumber(min=1), default=3, show_default=True, help="Number of steps before the save.")
@click.option(
    "--compare",
    type=WholeNumber(min=1),
    default=5,
    show_default=True,
    help="Number of steps to compare after the save.",
)
@click.option(
    "--point",
    "points",
    type=OneOf(["step", "epoch"]),
    multiple=True,
    help="Save after --steps (step), or at the first end of an epoch (epoch). Repeatable. Default: both, if an epoch "
    "ends in time.",
)
@click.option("--rtol", type=Number(min=0), help="Relative tolerance of the profile tolerant.  [default: 0.001]")
@click.option("--atol", type=Number(min=0), help="Absolute tolerance of the profile tolerant.  [default: 1e-06]")
@click.option("--ignore", metavar="NAME", multiple=True, help="A part or variable that may differ. Repeatable.")
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True, help="Seed the random generators.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="TIME",
    default="10m",
    show_default=True,
    callback=_timeout,
    help="Time limit of each process.",
)
@click.option(
    "--directory",
    type=UserPath(path_type=Path, exists=True, file_okay=False),
    help="Directory for the temporary store, which takes twice the space of a checkpoint.",
)
@json_option
@pass_frame
def check_resume(
    frame: Frame,
    /,
    loop: str,
    points: tuple[str, ...],
    rtol: float | None,
    atol: float | None,
    **options: Any,
) -> int:
    """Check that a training continues exactly after a resume.

    FUNCTION returns a ckstore.training.Loop. MODULE is a module that Python can
    import from the current directory, or a file such as train.py. The
    command runs the training in fresh processes: twice without interruption, once
    with saves to a temporary store, and once resumed from each save. It compares all
    steps, and reports the first difference. It requires torch, but no store.

    \b
    Example:
      ckstore check-resume train:make_loop
      ckstore check-resume train.py:make_loop --point epoch --json
      ckstore check-resume train:make_loop --profile tolerant -- --config tiny

    \b
    Exit status:
      0  the training continues exactly, or within the tolerance
      1  it does not, or its code raised an error, crashed or exceeded the time limit
      2  wrong usage, no such function, or the function returns no Loop
    """
    if find_spec("torch") is None:
        msg = "the check needs torch, which is not installed"
        raise MissingExtra(msg, hint="pip install 'ckstore[torch]'")
    from ckstore.training import check

    out = frame.output()
    options |= {name: value for name, value in (("rtol", rtol), ("atol", atol)) if value is not None}
    options["points"] = points or None
    report = check(loop, progress=lambda what: out.note(f"running {what}"), **options)
    out.document(report)
    first, *others = report.lines()
    out.headed("", first, "bold")
    out.lines(others)
    return 0 if report.ok else CkstoreError.exit_status
