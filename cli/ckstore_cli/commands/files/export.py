"""``ckstore export``: a checkpoint as safetensors, a torch file, a directory of DCP or of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckstore.model.reports import export_report
from ckstore_cli._frame import Frame, framed
from ckstore_cli._options import parsed_size
from ckstore_cli._progress import Progress
from ckstore_cli._refs import complete_ref
from ckstore_cli._types import OneOf


@click.command()
@click.argument("ref", shell_complete=complete_ref)
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option(
    "--format",
    type=OneOf(["safetensors", "torch", "dcp", "pretrained", "peft"]),
    default="safetensors",
    show_default=True,
    help="torch: one file for torch.load. dcp: a directory for torch.distributed.checkpoint. "
    "pretrained, peft: a directory for from_pretrained.",
)
@click.option(
    "--max-shard",
    "max_shard_bytes",
    metavar="SIZE",
    default="50GB",
    show_default=True,
    callback=parsed_size,
    help="Largest size of the tensors in one file.",
)
@click.option(
    "--select", metavar="NAME", multiple=True, help="Only this name and what is below it, or what matches a glob."
)
@click.option("--strip-prefix", is_flag=True, help="Remove the path given by --select from the tensors' names.")
@click.option(
    "--add",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="For pretrained and peft: a file to put beside the weights, such as config.json, or a directory of such.",
)
@click.option("--sums", is_flag=True, help="Also write SHA256SUMS, for sha256sum -c and ckstore verify --export.")
@click.option(
    "--model-signing", is_flag=True, help="As --sums, and model.intoto.json, the statement for OpenSSF model signing."
)
@framed
def export(frame: Frame, ref: str, destination: Path, select: tuple[str, ...], **options: Any) -> None:
    """Write the checkpoint REF as files that other programs read.

    The new directory DEST holds model.safetensors, or shards with
    model.safetensors.index.json. Values that safetensors cannot hold, such as a
    learning rate, go into state.json beside them. Every byte is checked, made
    durable and read back before DEST appears.

    With --format torch, DEST is one new file that torch.load reads; with --format
    dcp it is a new directory that torch.distributed.checkpoint loads. With
    --format pretrained or peft it is one that from_pretrained opens: of a state
    dict that was saved, or of what a trainer wrote and was committed.

    \b
    Example:
      ckstore export latest out/
      ckstore export best out/ --select model --strip-prefix
      ckstore export latest model.pt --format torch
      ckstore export main@1200 out/ --max-shard 5GB
      ckstore export main@500 out/ --format pretrained

    \b
    Exit status:
      0  done
      1  failed
      2  wrong usage, DEST is not empty, or this state cannot be exported this way
      3  the checkpoint is damaged
      4  there is no such store or checkpoint, several fit, or no name matches
      6  not enough space
    """
    out = frame.output()
    if options.pop("model_signing"):
        options["sums"] = "model-signing"
    with frame.writing() as store, Progress("exporting", quiet=out.as_json) as shown:
        report = store.export(ref, destination, select=list(select) or None, progress=shown.at, **options)
    out.document(report)
    out.lines(export_report.lines(report, destination))
