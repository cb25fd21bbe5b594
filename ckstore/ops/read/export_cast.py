"""Convert weights to another dtype while they are written, and count the values that are out of its range."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ckstore.containers.safetensors_write import TensorToWrite, dtype_and_shape
from ckstore.errors import BadInput
from ckstore.model.manifest.dtypes import DTYPES
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.names import plain
from ckstore.model.words import beyond_text
from ckstore.ops.read.export_plan import ExportPlan

if TYPE_CHECKING:
    from ckstore.tensors.dtype_cast import DtypeCast

WeightDtype = Literal["float16", "bfloat16", "float32"]
"""The dtypes in which `ckstore.Store.publish` can write floating-point weights."""

_BY_TORCH = {one.torch: one for one in DTYPES}
_BY_SAFETENSORS = {one.safetensors: one for one in DTYPES if one.safetensors}
_CONVERTED = {"float16", "bfloat16", "float32", "float64"}
_UNCHANGED = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}


@dataclass
class CastTally:
    """The values that were out of range when the weights of one published version were converted."""

    dtype: WeightDtype | None  # the dtype of the written weights; None if they are not converted
    count: int = 0  # the number of values out of range
    beyond: dict[str, str] = field(default_factory=dict)  # name of a weight -> the conversion and the number of values

    def add(self, name: str, cast: DtypeCast | None) -> None:
        """Count the values of a written weight that were out of range."""
        if cast is not None and cast.beyond:
            self.count += cast.beyond
            self.beyond[name] = f"{cast.found} to {cast.wanted}, {beyond_text(cast.beyond)}"


def cast_plan(plan: ExportPlan, dtype: WeightDtype | None) -> ExportPlan:
    """Return the plan with its floating-point tensors in `dtype`. Without `dtype`, return the unchanged plan.

    Raises:
        BadInput: A tensor has a dtype other than integer, boolean, or floating-point of at least 16 bits.
    """
    if dtype is None:
        return plan
    wanted = _BY_TORCH[dtype]
    tensors = []
    for leaf, tensor in zip(plan.leaves, plan.tensors, strict=True):
        found = _BY_SAFETENSORS[tensor.dtype]
        if found.torch in _CONVERTED:
            nbytes = tensor.nbytes * wanted.bits // found.bits
            tensors.append(replace(tensor, dtype=wanted.safetensors, nbytes=nbytes))
        elif found.torch in _UNCHANGED:
            tensors.append(tensor)
        else:
            # The scales of narrower numbers are in other tensors, and complex numbers would lose their imaginary parts.
            msg = f"{plain(leaf.name)} has dtype {leaf.dtype}, which cannot be published as {dtype}"
            raise BadInput(msg, hint="leave dtype= out", command_hint="leave --dtype out")
    return replace(plan, tensors=tuple(tensors))


def source_dtype(leaf: LeafRecord, tensor: TensorToWrite) -> str:
    """Return the safetensors name of the dtype of a leaf."""
    held = dtype_and_shape(leaf.kind, leaf.dtype, leaf.shape)
    return tensor.dtype if held is None else held[0]


def cast_of(leaf: LeafRecord, tensor: TensorToWrite) -> DtypeCast | None:
    """Return the conversion of a leaf to the written tensor, or None if both have the same dtype."""
    found = source_dtype(leaf, tensor)
    if found == tensor.dtype:
        return None
    from ckstore.tensors.dtype_cast import DtypeCast

    return DtypeCast(_BY_SAFETENSORS[found].torch, _BY_SAFETENSORS[tensor.dtype].torch)
