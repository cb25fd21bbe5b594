"""The difference between two tensors or two arrays."""

from __future__ import annotations

import math
from typing import Any

from ckstore.model.reports.diff import Difference
from ckstore.tensors.kinds import is_array, is_tensor

_BLOCK_ELEMENTS = 2**20
"""The number of elements that are compared at once, 8 MiB in float64."""


def largest_difference(before: Any, after: Any) -> Difference | None:
    """Return the largest absolute and relative difference of two floating or complex tensors or arrays.

    Both must have the same shape.
    Elements are compared in float64 or complex128, block by block. Two NaNs count as equal. The difference between
    a NaN or an infinity and another value is infinite.

    Returns:
        None if the values are not two such tensors or two such arrays, or if torch cannot convert their elements. Also
        None for views that repeat elements so often that there are more elements than bytes.
    """
    if is_tensor(before) and is_tensor(after):
        blocks = _torch_blocks(before, after)
    elif is_array(before) and is_array(after):
        blocks = _numpy_blocks(before, after)
    else:
        return None
    if blocks is None:
        return None
    absolute = relative = 0.0
    for one, other in blocks:
        found = _of_block(one, other)
        absolute, relative = max(absolute, found[0]), max(relative, found[1])
    return Difference(absolute, relative)


def _torch_blocks(before: Any, after: Any) -> Any:
    import torch

    if before.shape != after.shape or not all(t.is_floating_point() or t.is_complex() for t in (before, after)):
        return None
    before, after = _distinct(before, after, before.stride(), after.stride())
    # An expanded tensor can have 2^60 elements in one byte of memory. Comparing them would never end.
    if before.numel() > before.untyped_storage().nbytes() + after.untyped_storage().nbytes():
        return None
    if any("float4" in str(t.dtype) for t in (before, after)):  # torch cannot convert this dtype
        return None
    wide = torch.complex128 if before.is_complex() or after.is_complex() else torch.float64

    def block(tensor: Any, start: int) -> Any:
        part = tensor[start : start + _BLOCK_ELEMENTS]
        if part.element_size() == 1:  # floats of 8 bits can only be converted to float32
            part = part.to(torch.float32)
        return part.to(wide).numpy()

    one, other = before.reshape(-1), after.reshape(-1)
    return ((block(one, start), block(other, start)) for start in range(0, one.numel(), _BLOCK_ELEMENTS))


def _distinct(before: Any, after: Any, strides: Any, other_strides: Any) -> tuple[Any, Any]:
    """Return both values, cut to the first index of each dimension along which both repeat the same elements."""
    index = tuple(
        slice(0, 1) if one == other == 0 else slice(None) for one, other in zip(strides, other_strides, strict=True)
    )
    return before[index], after[index]


def _numpy_blocks(before: Any, after: Any) -> Any:
    import numpy as np

    if before.shape != after.shape or any(a.dtype.kind not in "fc" for a in (before, after)):
        return None
    wide = np.complex128 if "c" in (before.dtype.kind, after.dtype.kind) else np.float64
    before, after = _distinct(before, after, before.strides, after.strides)
    if before.size > _span_bytes(before) + _span_bytes(after):
        return None
    one, other = before.reshape(-1), after.reshape(-1)
    starts = range(0, one.size, _BLOCK_ELEMENTS)
    return (
        (one[start : start + _BLOCK_ELEMENTS].astype(wide), other[start : start + _BLOCK_ELEMENTS].astype(wide))
        for start in starts
    )


def _span_bytes(array: Any) -> int:
    """Return the number of bytes from the first to the last byte of an array in memory."""
    return int(array.itemsize + sum((n - 1) * abs(step) for n, step in zip(array.shape, array.strides, strict=True)))


def _of_block(one: Any, other: Any) -> tuple[float, float]:
    import numpy as np

    differ = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    one, other = one[differ], other[differ]
    if not one.size:
        return 0.0, 0.0
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return math.inf, math.inf
    with np.errstate(over="ignore"):
        absolute = np.abs(one - other)
        # Halve the values first, so that the difference of the greatest floats is not infinite. The divisor is never 0,
        # because the values differ.
        relative = 2 * (np.abs(one / 2 - other / 2) / np.maximum(np.abs(one), np.abs(other)))
    return float(absolute.max()), float(relative.max())
