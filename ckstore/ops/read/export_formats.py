"""Export a checkpoint in one of several formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

from ckstore.errors import BadInput, MissingExtra
from ckstore.model.reports.export_report import ExportReport
from ckstore.ops.context import Context
from ckstore.ops.read.export import MAX_SHARD_BYTES, export_open
from ckstore.ops.refs.find import AnyRef, read_checkpoint

ExportFormat = Literal["safetensors", "torch", "dcp", "pretrained", "peft"]
"""The formats that `ckstore.Store.export` writes."""
_WITH_FILES = ("pretrained", "peft")
_ONE_FILE = ("torch", "peft")


def export(
    context: Context,
    ref: AnyRef,
    destination: str | os.PathLike[str],
    *,
    format: ExportFormat,  # noqa: A002 - the same name as on the command line
    max_shard_bytes: int | str,
    strip_prefix: bool,
    add: Sequence[str | os.PathLike[str]] = (),
    **options: Any,  # select, sums and progress
) -> ExportReport:
    """Export the checkpoint that `ref` names; see `ckstore.Store.export`."""
    path = context.layout.outside(destination)
    if add and format not in _WITH_FILES:
        raise BadInput(
            f"add= copies files next to a model, and works only with {' and '.join(_WITH_FILES)}",
            hint="leave add= out",
        )
    if format == "safetensors":
        options |= {"max_shard_bytes": max_shard_bytes, "strip_prefix": strip_prefix}
        return read_checkpoint(context, ref, partial(export_open, destination=path, **options))
    if format not in get_args(ExportFormat):
        raise BadInput(f"format must be one of {', '.join(get_args(ExportFormat))}, got {format!r}")
    if format == "torch" and options.get("sums") == "model-signing":
        msg = "the statement of model-signing covers a directory, but a torch file is one file"
        raise BadInput(msg, hint="pass sums=True", command_hint="pass --sums")
    if strip_prefix:
        names = "those of the model" if format in _WITH_FILES else "those of the state"
        msg = f"strip_prefix works only with safetensors: the names in {format} are {names}"
        raise BadInput(msg, hint="leave strip_prefix= out")
    if format in _ONE_FILE and max_shard_bytes not in (MAX_SHARD_BYTES, "50GB"):
        msg = f"max_shard_bytes does not work with {format}, which is one file"
        raise BadInput(msg, hint="leave max_shard_bytes= out")
    if format not in _ONE_FILE:
        options["max_shard_bytes"] = max_shard_bytes
    if format in _WITH_FILES:
        options |= {"form": format, "add": add, "chunk_bytes": context.settings.chunk_bytes}
    return read_checkpoint(context, ref, partial(_writer(format), path=path, **options))


def _writer(kind: ExportFormat) -> Callable[..., ExportReport]:
    if kind in _WITH_FILES:
        from ckstore.ops.read.formats.export_pretrained import export_pretrained

        return export_pretrained
    try:
        from ckstore.tensors.files import pickled
    except ImportError as error:
        raise MissingExtra.of(error, f"an export as {kind} needs", "torch", "torch") from error
    del pickled
    if kind == "torch":
        from ckstore.ops.read.formats.export_torch import export_torch

        return export_torch
    from ckstore.ops.read.formats.export_dcp import export_dcp

    return export_dcp
