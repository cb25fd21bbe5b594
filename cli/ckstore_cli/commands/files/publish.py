"""``ckstore publish``: publish the weights of a run for engines that serve them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ckstore_cli._frame import Frame, framed
from ckstore_cli._types import Number, OneOf, WholeNumber


@click.command()
@click.argument("run")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", type=OneOf(["sglang"]), default="sglang", show_default=True, help="The layout of the versions."
)
@click.option(
    "--ref", default="latest", show_default=True, help="The checkpoint of the run to publish, such as best:reward."
)
@click.option("--select", metavar="NAME", help="The name of the state dict in the saved state, such as model.")
@click.option(
    "--add",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file for each version with all weights, such as config.json, or a directory of files without its weights. "
    "Repeatable.",
)
@click.option(
    "--dtype",
    metavar="DTYPE",
    type=OneOf(["bfloat16", "float16", "float32"]),
    help="Convert floating-point weights to bfloat16, float16 or float32. Default: the dtype in the checkpoint.",
)
@click.option(
    "--difference",
    type=OneOf(["overwrite", "xor"]),
    default="overwrite",
    show_default=True,
    help="The form of differences: an engine can apply overwrite again after a crash, but not xor.",
)
@click.option(
    "--full-every",
    metavar="N",
    type=WholeNumber(min=1),
    default=50,
    show_default=True,
    help="Publish all weights at least once in N versions.",
)
@click.option(
    "--full-above",
    metavar="SHARE",
    type=Number(min=0, min_open=True, max=1),
    default=0.5,
    show_default=True,
    help="Publish all weights if the differences are larger than this share of the weights.",
)
@click.option(
    "--keep-full",
    metavar="N",
    type=WholeNumber(min=1),
    default=2,
    show_default=True,
    help="Number of versions with all weights to keep; versions older than these are removed.",
)
@click.option("--once", is_flag=True, help="Publish the newest checkpoint and end. Otherwise wait for new checkpoints.")
@click.option("--remote", metavar="NAME", help="Also publish new checkpoints of this remote.")
@click.option(
    "--poll",
    "poll_s",
    metavar="SECONDS",
    type=Number(min=0, min_open=True),
    help="Interval of checks. Default: 1, or 5 for a remote.",
)
@framed
def publish(frame: Frame, run: str, directory: Path, *, once: bool, **options: Any) -> None:
    """Publish the weights of RUN in DIR as RUN grows, for engines that serve them.

    DIR gets the directories weight_v000001, weight_v000002 and so on, which
    SGLang's /pull_weights reads. The newest version has the weights of the newest
    checkpoint. A version has only the differences from the previous one, or all
    weights, for example the first one.

    One line is printed for each version, with --json one document. If a version
    has all weights, its line gives the reason.

    \b
    Example:
      ckstore publish policy /shared/weights --select model --add base/
      ckstore publish policy /shared/weights --select model --add base/ --dtype bfloat16
      ckstore publish policy /shared/weights --select model --add base/ --once

    \b
    Exit status:
      0  done
      1  failed
      2  wrong usage, or DIR has versions of another program or run
      3  the checkpoint is damaged
      4  no such store, or --ref names no checkpoint
      5  another process publishes to DIR
      6  not enough space
    """
    out = frame.output()
    with (
        frame.reading() if options["remote"] is None else frame.writing() as store,
        store.publish(run, directory, timeout_s=0 if once else None, **options) as versions,
    ):
        for version in versions:
            out.document(version)
            out.line(str(version))
            sys.stdout.flush()
