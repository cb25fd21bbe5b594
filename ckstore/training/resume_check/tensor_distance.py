"""The distance between the tensors of two runs."""

from __future__ import annotations

from typing import Any

from ckstore.tensors.compare import largest_difference
from ckstore.tensors.kinds import is_tensor


def distance(before: Any, after: Any) -> dict[str, Any]:
    """Return ``largest_absolute``, ``ulps`` and ``size``, or an empty dict if the values are not comparable.

    ``ulps`` is the largest number of representable values between two elements, or None if it has no meaning.
    ``size`` is the largest element of `before`.
    """
    before, after = _on_host(before), _on_host(after)
    found = largest_difference(before, after)
    if found is None:
        return {}
    return {
        "largest_absolute": found.largest_absolute,
        "ulps": _ulps(before, after),
        "size": _size(before),
    }


def _on_host(value: Any) -> Any:
    return value.detach().cpu() if is_tensor(value) else value


def _size(value: Any) -> float:
    flat = value.reshape(-1)
    if is_tensor(flat):
        import torch

        if flat.element_size() == 1:  # torch has no maximum for floats of 8 bits
            flat = flat.to(torch.float32)
        return float(flat.abs().max()) if flat.numel() else 0.0
    return float(abs(flat).max()) if flat.size else 0.0


def _ulps(before: Any, after: Any) -> int | None:
    import numpy as np

    one, other = _bits(before), _bits(after)
    if one is None or other is None or one.dtype != other.dtype or not one.size:
        return None
    # Convert the sign and magnitude of floats to integers that have the order of the floats.
    low = np.iinfo(one.dtype).min
    ordered = [np.where(bits < 0, low - bits, bits).astype(np.int64) for bits in (one, other)]
    # The distance between two int64 may exceed an int64. Subtracted as uint64, they wrap around to the right number.
    apart = np.maximum(*ordered).view(np.uint64) - np.minimum(*ordered).view(np.uint64)
    return int(apart.max())


def _bits(value: Any) -> Any:
    import numpy as np

    flat = value.reshape(-1)
    if not is_tensor(flat):
        integers = {2: np.int16, 4: np.int32, 8: np.int64}.get(flat.itemsize)
        usable = flat.dtype.kind == "f" and integers is not None and bool(np.isfinite(flat).all())
        return np.ascontiguousarray(flat).view(integers) if usable else None
    import torch

    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    wide = flat.to(torch.float32) if flat.element_size() == 1 else flat
    if not flat.is_floating_point() or not bool(torch.isfinite(wide).all()):
        return None
    return flat.contiguous().view(sizes[flat.element_size()]).numpy()
