"""Tensors that exist already and are to be filled. Imported only when a target has some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ckstore.errors import BadInput
from ckstore.tensors.layout import Region, may_overlap
from ckstore.tensors.torch_leaves import DTYPE_NAMES, as_bits

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import LeafRecord


def can_be_filled(target: torch.Tensor) -> bool:
    """Whether `target` is a plain tensor with memory, whose values can be replaced in place."""
    plain = type(target) is torch.Tensor or type(target) is torch.nn.Parameter
    if not plain or target.layout is not torch.strided or target.dtype not in DTYPE_NAMES:
        return False
    return target.device.type != "meta" and not may_overlap(target.shape, target.stride())


def takes(target: torch.Tensor, leaf: LeafRecord) -> bool:
    """Whether `target` (`can_be_filled`) can hold the values of a leaf just as they are."""
    same_type = leaf.kind == "torch" and DTYPE_NAMES[target.dtype] == leaf.dtype
    return same_type and tuple(target.shape) == leaf.shape


def describe(target: torch.Tensor) -> str:
    """Return shape and dtype for messages, as `into` writes them for leaves."""
    return f"shape {list(target.shape)} {DTYPE_NAMES.get(target.dtype, target.dtype)}"


def region(target: torch.Tensor, leaf: LeafRecord) -> Region | None:
    """Return where the elements of `target` lie, if they lie there as those of `leaf` do.

    Args:
        target: A tensor that can be filled, and takes the leaf.
        leaf: It ends where a row-major leaf would end, so that nothing lies between its elements.

    Returns:
        None if they do not, or not on the CPU, or not as plain bits (conjugate views).
    """
    if not target.is_cpu or target.is_conj() or target.is_neg() or not target.numel():
        return None
    if leaf.strides is None:
        if not target.is_contiguous():
            return None
    elif target.stride() != leaf.strides:
        return None
    nbytes = target.numel() * target.element_size()
    start = int(target.storage_offset()) * target.element_size()
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    flat = empty.set_(target.untyped_storage(), start, (nbytes,), (1,))
    return Region(flat.data_ptr(), nbytes, flat.numpy().data)


def fill(target: torch.Tensor, found: object) -> None:
    """Copy the values of a tensor of the same dtype and shape into `target`, bit for bit."""
    if not isinstance(found, torch.Tensor):
        raise BadInput(f"a tensor can only be filled from a tensor, got {type(found).__qualname__}")
    # Outside of inference mode, torch refuses to write to tensors that were made in it.
    with torch.inference_mode() if target.is_inference() else torch.no_grad():
        if target.is_conj() or target.is_neg():
            target.copy_(found)
        else:
            as_bits(target).copy_(as_bits(found))


def count_as_modified(target: torch.Tensor) -> None:
    """Tell torch that the values of `target` were replaced behind its back."""
    if not target.is_inference():
        torch.autograd.graph.increment_version(target)
