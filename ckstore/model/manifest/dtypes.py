"""Names and sizes of the dtypes that the format holds. Source: docs/format/v1.md, "Leaves"."""

from __future__ import annotations

import re

_TORCH_BY_SIZE = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "int16 uint16 float16 bfloat16",
    4: "int32 uint32 float32 complex32",
    8: "int64 uint64 float64 complex64",
    16: "complex128",
}
TORCH_ITEMSIZE = {name: size for size, names in _TORCH_BY_SIZE.items() for name in names.split()}

NUMBERS_ITEMSIZE = {"int64": 8, "float64": 8, "bool": 1}
"""What a long list of numbers is kept as."""

_NUMPY_SIZED = {"b": {1}, "i": {1, 2, 4, 8}, "u": {1, 2, 4, 8}, "f": {2, 4, 8}, "c": {8, 16}}
_NUMPY_PATTERN = re.compile(
    r"([<>|])([biufcMmSU])([1-9][0-9]{0,9})(\[(?:[1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?\Z"
)
_MAX_ITEM_BYTES = 2**31 - 1
"""What NumPy counts the bytes of an item in."""
_DATETIME_BYTES = 8
_UNICODE_BYTES = 4


def numpy_itemsize(dtype: str) -> int | None:
    """Return the bytes of one item of a NumPy dtype string, or None if the format does not hold it."""
    match = _NUMPY_PATTERN.match(dtype)
    if match is None:
        return None
    kind, size, unit = match[2], int(match[3]), match[4]
    if kind in "Mm":
        return size if size == _DATETIME_BYTES else None
    if unit is not None:
        return None
    if kind in "SU":
        size *= _UNICODE_BYTES if kind == "U" else 1
        return size if size <= _MAX_ITEM_BYTES else None
    return size if size in _NUMPY_SIZED[kind] else None


def itemsize(kind: str, dtype: str) -> int | None:
    """Return the bytes of one item, or None if leaves of `kind` cannot have that dtype."""
    if kind == "torch":
        return TORCH_ITEMSIZE.get(dtype)
    if kind == "numbers":
        return NUMBERS_ITEMSIZE.get(dtype)
    return numpy_itemsize(dtype) if kind == "numpy" else None
