"""How far two tensors or two arrays are apart."""

from __future__ import annotations

import math
from typing import Any

from ckstore.model.diff import Difference
from ckstore.tensors.kinds import is_array, is_tensor

_BLOCK_ELEMENTS = 2**20


def largest_difference(before: Any, after: Any) -> Difference | None:
    """Return the largest absolute and relative difference of two floating or complex tensors or arrays of one shape.

    They are compared in float64, a block at a time. Equal elements are no difference, nor are two nans; a nan or an
    infinity against anything else is an infinite one.

    Returns:
        None if they are of another kind, shape or type of element, so that there is nothing to compare.
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
    if any("float4" in str(t.dtype) for t in (before, after)):  # torch cannot convert it
        return None
    wide = torch.complex128 if before.is_complex() or after.is_complex() else torch.float64

    def block(tensor: Any, start: int) -> Any:
        part = tensor.reshape(-1)[start : start + _BLOCK_ELEMENTS]
        if part.element_size() == 1:  # the small floats convert to float32 only
            part = part.to(torch.float32)
        return part.to(wide).numpy()

    starts = range(0, before.numel(), _BLOCK_ELEMENTS)
    return ((block(before, start), block(after, start)) for start in starts)


def _numpy_blocks(before: Any, after: Any) -> Any:
    import numpy as np

    if before.shape != after.shape or any(a.dtype.kind not in "fc" for a in (before, after)):
        return None
    wide = np.complex128 if "c" in (before.dtype.kind, after.dtype.kind) else np.float64
    one, other = before.reshape(-1), after.reshape(-1)
    starts = range(0, one.size, _BLOCK_ELEMENTS)
    return (
        (one[start : start + _BLOCK_ELEMENTS].astype(wide), other[start : start + _BLOCK_ELEMENTS].astype(wide))
        for start in starts
    )


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
        # Halved first, so that the greatest floats do not become infinite; never zero, since they differ.
        relative = 2 * (np.abs(one / 2 - other / 2) / np.maximum(np.abs(one), np.abs(other)))
    return float(absolute.max()), float(relative.max())
