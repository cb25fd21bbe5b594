"""Export a checkpoint in one of several formats."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from ckstore.errors import BadInput
from ckstore.ops.read.destination import outside_store
from ckstore.ops.read.export import MAX_SHARD_BYTES, export_open
from ckstore.ops.refs.find import AnyRef, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.model.reports.export_report import ExportReport
    from ckstore.ops.context import Context

ExportFormat = Literal["safetensors", "torch", "dcp"]
"""What `ckstore.Store.export` writes."""


def export(
    context: Context,
    ref: AnyRef,
    destination: str | os.PathLike[str],
    *,
    format: ExportFormat,  # noqa: A002 - the word of the command line
    max_shard_bytes: int | str,
    strip_prefix: bool,
    **options: Any,
) -> ExportReport:
    """Export the checkpoint that `ref` names; see `ckstore.Store.export`."""
    path = outside_store(context.layout, destination)
    if format == "safetensors":
        options |= {"max_shard_bytes": max_shard_bytes, "strip_prefix": strip_prefix}
        return read_checkpoint(context, ref, partial(export_open, destination=path, **options))
    if format not in get_args(ExportFormat):
        msg = f"format must be one of {', '.join(get_args(ExportFormat))}, got {format!r}"
        raise BadInput(msg)
    if strip_prefix:
        msg = f"strip_prefix is for safetensors: the names in {format} are those of the state"
        raise BadInput(msg, hint="leave strip_prefix out", command_hint="leave --strip-prefix out")
    if format == "torch" and max_shard_bytes not in (MAX_SHARD_BYTES, "50GB"):
        msg = "max_shard_bytes does not go with torch, which is one file"
        raise BadInput(msg, hint="leave max_shard_bytes out", command_hint="leave --max-shard out")
    if format == "dcp":
        options["max_shard_bytes"] = max_shard_bytes
    return read_checkpoint(context, ref, partial(_writer(format), path=path, **options))


def _writer(kind: ExportFormat) -> Callable[..., ExportReport]:
    try:
        from ckstore.tensors.files import pickled
    except ModuleNotFoundError as error:
        msg = f"an export as {kind} is made with torch, which is not installed"
        raise BadInput(msg, hint="pip install 'ckstore[torch]'") from error
    del pickled
    if kind == "torch":
        from ckstore.ops.read.formats.export_torch import export_torch

        return export_torch
    from ckstore.ops.read.formats.export_dcp import export_dcp

    return export_dcp
