"""``ckstore export``: write a checkpoint as safetensors, a torch file, or a directory for DCP or transformers."""

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
    help="torch is one file for torch.load, dcp a directory for torch.distributed.checkpoint, and pretrained and "
    "peft are directories for from_pretrained.",
)
@click.option(
    "--max-shard",
    "max_shard_bytes",
    metavar="SIZE",
    default="50GB",
    show_default=True,
    callback=parsed_size,
    help="Maximum size of the tensors in one file. A larger tensor gets its own file.",
)
@click.option(
    "--select",
    metavar="NAME",
    multiple=True,
    help="Export only this name and the names below it, or names that match a glob. Repeatable.",
)
@click.option("--strip-prefix", is_flag=True, help="Remove the path given with --select from the names of tensors.")
@click.option(
    "--add",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="For pretrained and peft: a file to copy next to the weights, such as config.json, or a directory of files. "
    "Repeatable.",
)
@click.option("--sums", is_flag=True, help="Also write SHA-256 sums, for sha256sum -c and ckstore verify --export.")
@click.option(
    "--model-signing",
    is_flag=True,
    help="Like --sums, and also write model.intoto.json, the statement for OpenSSF model signing.",
)
@framed
def export(frame: Frame, ref: str, destination: Path, select: tuple[str, ...], **options: Any) -> None:
    """Write the checkpoint REF as files for other programs.

    DEST is a new directory with model.safetensors, or with shards and
    model.safetensors.index.json. Values that safetensors cannot store, such as a
    learning rate, are written to state.json. All data is verified, made durable
    and read back before DEST appears.

    With --format torch, DEST is a new file that torch.load reads. With --format
    dcp, it is a new directory that torch.distributed.checkpoint loads. With
    --format pretrained or peft, it is a new directory that from_pretrained opens.
    These two formats accept a saved state dict or committed files of a trainer.

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
      2  wrong usage, DEST is not empty, or the state does not fit the format
      3  the checkpoint is damaged
      4  no such store or checkpoint, REF is ambiguous, or no name matches
      6  not enough space
    """
    out = frame.output()
    if options.pop("model_signing"):
        options["sums"] = "model-signing"
    with frame.writing() as store, Progress("exporting", quiet=out.as_json) as shown:
        report = store.export(ref, destination, select=list(select) or None, progress=shown.at, **options)
    out.document(report)
    out.lines(export_report.lines(report, destination))
