"""Count the values in a buffer that are not finite (NaN and infinities), by the bits of each number format.

No value is converted. Most buffers have no such value. Two passes detect this by the greatest integer that the bits
represent. docs/adr/0033-health.md has the sizes and the cost of the passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ckstore.model.manifest.health import FINITE, NonFiniteCount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The first pass brings a window of this size into the processor's cache for the second pass.
_WINDOW_BYTES = 2**20


@cache
def _integers(item_bytes: int) -> tuple[Any, Any]:
    """Return the unsigned and the signed integer type of this size."""
    import numpy as np

    return np.dtype(f"<u{item_bytes}"), np.dtype(f"<i{item_bytes}")


@dataclass(frozen=True, slots=True)
class FloatForm:
    """The bits of values that are not finite in one number format."""

    name: str
    item_bytes: int
    least: int = 0  # the smallest bits, without the sign, of a value that is not finite
    infinity: int = 0  # the bits of infinity, or 0 if the format has no infinity
    # For a format with a single NaN, the bits of the NaN, including the sign. `least` is not used for such a format.
    only_nan: int = 0

    def has_nonfinite(self, data: memoryview) -> bool:
        """Whether a value in `data` is not finite."""
        return any(self._suspects(window) for window in self._windows(data))

    def count(self, data: memoryview) -> NonFiniteCount:
        """Return the number of values in `data` that are not finite. `data` contains complete values."""
        found = FINITE
        for window in self._windows(data):
            if self._suspects(window):
                found = found.plus(self._count(window))
        return found

    def _windows(self, data: memoryview) -> Iterator[Any]:
        import numpy as np

        # A storage of a committed file may end in the middle of a number. Such a number belongs to no tensor.
        end = len(data) - len(data) % self.item_bytes
        for at in range(0, end, _WINDOW_BYTES):
            yield np.frombuffer(data[at : min(at + _WINDOW_BYTES, end)], _integers(self.item_bytes)[0])

    def _suspects(self, bits: Any) -> bool:
        signed = bits.view(_integers(self.item_bytes)[1])
        sign = 1 << (8 * self.item_bytes - 1)
        if self.only_nan == sign:
            return bool(signed.min() == -sign)
        if self.only_nan:
            return bool(bits.max() == self.only_nan)
        # The greatest signed integer has the bits of the greatest positive value. The greatest unsigned integer has the
        # bits of the smallest negative value, if there is one.
        return bool(signed.max() >= self.least or bits.max() >= sign + self.least)

    def _count(self, bits: Any) -> NonFiniteCount:
        import numpy as np

        if self.only_nan:
            return NonFiniteCount(int(np.count_nonzero(bits == self.only_nan)))
        size = bits & ((1 << (8 * self.item_bytes - 1)) - 1)
        inf = int(np.count_nonzero(size == self.infinity)) if self.infinity else 0
        return NonFiniteCount(int(np.count_nonzero(size >= self.least)) - inf, inf)


_HALF = FloatForm("float16", 2, 0x7C00, 0x7C00)
_BRAIN = FloatForm("bfloat16", 2, 0x7F80, 0x7F80)
_SINGLE = FloatForm("float32", 4, 0x7F800000, 0x7F800000)
_DOUBLE = FloatForm("float64", 8, 0x7FF0000000000000, 0x7FF0000000000000)

FORMS: Mapping[str, FloatForm] = {
    "float16": _HALF,
    "bfloat16": _BRAIN,
    "float32": _SINGLE,
    "float64": _DOUBLE,
    # A complex number counts as two values.
    "complex32": _HALF,
    "bcomplex32": _BRAIN,
    "complex64": _SINGLE,
    "complex128": _DOUBLE,
    "float8_e5m2": FloatForm("float8_e5m2", 1, 0x7C, 0x7C),
    "float8_e4m3fn": FloatForm("float8_e4m3fn", 1, 0x7F),
    "float8_e4m3fnuz": FloatForm("float8_e4m3fnuz", 1, only_nan=0x80),
    "float8_e5m2fnuz": FloatForm("float8_e5m2fnuz", 1, only_nan=0x80),
    "float8_e8m0fnu": FloatForm("float8_e8m0fnu", 1, only_nan=0xFF),
    "<f2": _HALF,
    "<f4": _SINGLE,
    "<f8": _DOUBLE,
    "<c8": _SINGLE,
    "<c16": _DOUBLE,
}
"""Dtype of a leaf -> its form. Other dtypes have integers, packed values, or another byte order, and are skipped."""
