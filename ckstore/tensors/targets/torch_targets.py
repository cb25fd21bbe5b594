"""Functions for existing tensors that a load fills. This module is imported only if a target has tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from ckstore.errors import BadInput
from ckstore.model.manifest.manifest import LeafRecord
from ckstore.model.sizes import SMALL_BELOW_BYTES
from ckstore.tensors.device.memory_space import space_of
from ckstore.tensors.memory_layout import Region, may_overlap, row_major
from ckstore.tensors.refusals import type_name
from ckstore.tensors.torch_leaves import DTYPE_NAMES, DTYPES, address_of, as_bits
from ckstore.tensors.torch_ranges import count_beyond
from ckstore.tensors.torch_rows import views_of
from ckstore.tensors.torch_sources import memory_at

_PACKED = {dtype for name, dtype in DTYPES.items() if name in ("complex32", "bcomplex32", "float4_e2m1fn_x2")}
"""Dtypes that torch supports, but converts wrongly or not at all."""


def can_be_filled(target: torch.Tensor) -> bool:
    """Whether `target` is a plain tensor with memory, whose values can be replaced in place."""
    plain = type(target) is torch.Tensor or type(target) is torch.nn.Parameter
    if not plain or target.layout is not torch.strided or target.dtype not in DTYPE_NAMES:
        return False
    # In an expanded tensor, many elements share memory, so the last write would win.
    return not target.is_meta and (target.is_contiguous() or not may_overlap(target.shape, target.stride()))


def can_copy(target: torch.Tensor) -> bool:
    """Whether `copy_` can probably copy the values of a plain tensor into `target`, which has a custom class."""
    if hasattr(target, "placements") or target.layout is not torch.strided or target.is_meta:
        return False
    return not may_overlap(target.shape, target.stride())


def takes(target: torch.Tensor, leaf: LeafRecord) -> bool:
    """Whether `target` (`can_be_filled`) can hold the values of a leaf unchanged."""
    same_type = leaf.kind == "torch" and DTYPE_NAMES[target.dtype] == leaf.dtype
    return same_type and tuple(target.shape) == leaf.shape


def casts(target: torch.Tensor, leaf: LeafRecord) -> bool:
    """Whether the values of a leaf can be converted to the dtype of `target`, which has the same shape.

    Like `torch.can_cast`, this function allows conversions to fewer bits, but not from complex to real numbers or from
    real numbers to integers.
    """
    return leaf.kind == "torch" and tuple(target.shape) == leaf.shape and _can_cast(leaf.dtype, target.dtype)


@cache
def _can_cast(name: str, dtype: torch.dtype) -> bool:
    found = DTYPES.get(name)
    if found is None or not torch.can_cast(found, dtype) or _PACKED & {found, dtype}:
        return False
    try:
        # `can_cast` also returns True for dtypes without a kernel in this build, so the conversion is tried.
        torch.zeros(1, dtype=dtype, device="cpu").copy_(torch.zeros(1, dtype=found, device="cpu"))
    except (NotImplementedError, RuntimeError, TypeError):  # torch cannot convert between them
        return False
    return True


def dtype_name(target: torch.Tensor) -> str:
    """Return the name of a tensor's dtype."""
    return DTYPE_NAMES.get(target.dtype, str(target.dtype))


def describe_unfilled(target: torch.Tensor) -> str:
    """Return the kind of a tensor that cannot be filled, for messages."""
    if type(target) is not torch.Tensor and type(target) is not torch.nn.Parameter:
        return type_name(type(target))
    if target.layout is not torch.strided:
        return f"one of layout {target.layout}"
    if target.dtype not in DTYPE_NAMES:
        return f"one of dtype {target.dtype}"
    return "one whose elements share memory"


def describe(target: torch.Tensor) -> str:
    """Return the shape and the dtype of a tensor for messages, in the same form as `Comparison.described`."""
    return f"shape {list(target.shape)} {dtype_name(target)}"


def region(target: torch.Tensor, leaf: LeafRecord) -> Region | None:
    """Return the memory of the elements of `target` for a direct read, if `target` has the layout of the leaf.

    Args:
        target: A tensor that can be filled, and takes the leaf.
        leaf: A leaf without gaps between its elements.

    Returns:
        None if the layouts differ, if the bits in memory are not those of the values (conjugate and negative views), or
        if the tensor is on a device and so small that a copy is as fast.
    """
    space = space_of(target.device)
    if not (space or target.is_cpu) or target.is_conj() or target.is_neg() or not target.numel():
        return None
    if leaf.strides is None:
        if not target.is_contiguous():
            return None
    elif target.stride() != leaf.strides:
        return None
    nbytes, storage = target.numel() * target.element_size(), target.untyped_storage()
    if space is None:
        return Region(target.data_ptr(), nbytes, memory_at(target.data_ptr(), nbytes, writable=True), storage)
    # All transfers below this size take the same time, and small storages are read together.
    if nbytes < SMALL_BELOW_BYTES:
        return None
    flat = torch.empty(0, dtype=torch.uint8, device=target.device)
    flat.set_(storage, int(target.storage_offset()) * target.element_size(), (nbytes,), (1,))
    return Region(flat.data_ptr(), nbytes, space.fillable(flat), storage)


def elements_key(target: torch.Tensor) -> object:
    """Return a value that is equal for tensors with the same elements of the same memory."""
    # Tensors without elements, without memory, and wrappers of other tensors have the address 0.
    address = 0 if torch.nn.parameter.is_lazy(target) or target.is_meta else address_of(target)
    return (target.device, address, target.dtype, target.shape, target.stride()) if address else id(target)


def moved_to(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy of it, on the device of a target."""
    return value.to(target.device)


def fill(target: torch.Tensor, found: object) -> int:
    """Copy the values of a tensor of the same shape into `target`, and convert them if the dtypes differ.

    Return the number of values out of the range of the dtype of `target`.
    """
    if not isinstance(found, torch.Tensor):
        raise BadInput(f"a tensor can only be filled from a tensor, got {type(found).__qualname__}")
    # torch refuses to write to inference tensors outside inference mode.
    with torch.inference_mode() if target.is_inference() else torch.no_grad():
        if target.is_conj() or target.is_neg() or target.dtype is not found.dtype:
            target.copy_(found)
        else:
            as_bits(target).copy_(as_bits(found))
    return count_beyond(found, target.dtype)


def streams(target: torch.Tensor, leaf: LeafRecord) -> bool:
    """Whether `fill_part` can fill `target`.

    This requires that the leaf has no gaps and is row-major in some order of axes, and that `target` is neither a
    conjugate nor a negative view.
    """
    return not target.is_conj() and not target.is_neg() and _axes(leaf) is not None


def fill_part(target: torch.Tensor, leaf: LeafRecord, start: int, data: memoryview) -> int:
    """Copy whole elements of a leaf into `target`, and convert them if the dtypes differ.

    `data` has the bytes of these elements, which begin at byte `start` of the leaf. Return the number of values out of
    the range of the dtype of `target`.
    """
    axes = _axes(leaf)
    if axes is None:
        raise BadInput(f"{leaf.name}: its elements do not follow each other")
    values = torch.frombuffer(data, dtype=DTYPES[leaf.dtype])
    beyond = count_beyond(values, target.dtype)
    # torch refuses to write to inference tensors outside inference mode.
    with torch.inference_mode() if target.is_inference() else torch.no_grad():
        place = target.detach().permute(axes)
        if target.dtype is values.dtype:
            place, values = as_bits(place), as_bits(values)
        for before, view in views_of(place, start // values.element_size(), values.numel()):
            view.copy_(values[before : before + view.numel()].view(view.shape))
    return beyond


def _axes(leaf: LeafRecord) -> tuple[int, ...] | None:
    """Return the order of axes in which a leaf is row-major without gaps, or None for other leaves."""
    if leaf.strides is None:
        return tuple(range(len(leaf.shape)))
    strides = leaf.strides
    axes = sorted(range(len(strides)), key=lambda axis: (-strides[axis], leaf.shape[axis] != 1))
    shape = [leaf.shape[axis] for axis in axes]
    same = all(
        size == 1 or strides[axis] == wanted for axis, size, wanted in zip(axes, shape, row_major(shape), strict=True)
    )
    return tuple(axes) if same else None


def empty_like_meta(target: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with the shape, dtype and strides of a tensor on the meta device.

    If the elements of `target` overlap, the new tensor is row-major instead.
    """
    strides = row_major(target.shape) if may_overlap(target.shape, target.stride()) else target.stride()
    try:
        return torch.empty_strided(target.shape, strides, dtype=target.dtype, device="cpu")
    except RuntimeError as error:
        raise MemoryError(f"{describe(target)} could not be allocated") from error


def as_parameter_of(target: torch.Tensor, value: object) -> object:
    """Return `value`. If `target` is a parameter, return it as a parameter with the same `requires_grad`."""
    if isinstance(target, torch.nn.Parameter) and isinstance(value, torch.Tensor):
        return torch.nn.Parameter(value, requires_grad=target.requires_grad)
    return value


def count_as_modified(targets: Iterable[torch.Tensor]) -> None:
    """Count a modification of each tensor, whose values were replaced without torch. It ignores inference tensors."""
    torch.autograd.graph.increment_version(targets)
