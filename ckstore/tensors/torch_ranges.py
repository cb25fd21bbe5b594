"""Count values that are out of the range of a dtype.

A conversion changes such a value to infinity, to the largest number of the dtype, or to an arbitrary number.
"""

from __future__ import annotations

from functools import cache

import torch

from ckstore.tensors.torch_leaves import empty_bytes

Number = int | float


def count_beyond(values: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the number of values that a conversion to a dtype changes by more than rounding."""
    if values.dtype is dtype or not values.numel():
        return 0
    low, high, has_infinity = _range(dtype)
    own_low, own_high, own_infinity = _range(values.dtype)
    if low <= own_low and own_high <= high and has_infinity >= own_infinity:  # no value can be out of range
        return 0
    values = _real(values.detach())
    # This pass is usually sufficient. If a value is NaN, both results are NaN, so the values are counted below.
    smallest, largest = (float(one) for one in values.aminmax())
    if low <= smallest and largest <= high:
        return 0
    # In a narrow dtype, the limits would be rounded before the comparison.
    values = values.float() if values.dtype in {torch.float16, torch.bfloat16} else values
    count = int((values < low).sum() + (values > high).sum())
    return count - int(values.isinf().sum()) if has_infinity and values.is_floating_point() else count


def _real(values: torch.Tensor) -> torch.Tensor:
    """Return values in a dtype for which torch computes a maximum, with complex numbers as pairs of real numbers."""
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if values.is_floating_point():
        return values.float() if values.element_size() == 1 else values
    return values.double() if values.dtype is torch.uint64 else values.long()


@cache
def _range(dtype: torch.dtype) -> tuple[Number, Number, bool]:
    """Return the smallest and the largest number of a dtype, and whether it has infinity."""
    if dtype is torch.bool:
        return 0, 1, False
    if dtype.is_floating_point or dtype.is_complex:
        found = torch.finfo(dtype)
        real = dtype.to_real()
        infinity = empty_bytes(8).view(torch.double).fill_(torch.inf)
        has_infinity = bool(infinity.to(real).float().isinf())
        return found.min, found.max, has_infinity
    limits = torch.iinfo(dtype)
    return limits.min, limits.max, False
