"""Long lists of numbers as bytes, and back. No NumPy: a state of plain Python needs none."""

from __future__ import annotations

import sys
from array import array
from typing import Any

NUMBERS_FROM_COUNT = 1024
"""Shorter lists are cheaper among the plain values of a manifest."""
_PART_COUNT = 1024
"""So many items are looked at and packed while they are in the processor's cache: shuffled ones are far apart."""
_CODES = {int: ("int64", "q"), float: ("float64", "d"), bool: ("bool", "B")}
_CODE_OF = {"int64": "q", "float64": "d"}


def pack_numbers(values: list[Any]) -> tuple[str, bytes] | None:
    """Return dtype and bytes of a long list whose items are all int, all float or all bool; None if it is another."""
    # Each item keeps all its bits. Integers beyond 64 bits stay what they are.
    if len(values) < NUMBERS_FROM_COUNT or type(values[0]) not in _CODES:
        return None
    kind = type(values[0])
    dtype, code = _CODES[kind]
    packed = array(code)
    for start in range(0, len(values), _PART_COUNT):
        part = values[start : start + _PART_COUNT]
        if any(found is not kind for found in set(map(type, part))):
            return None
        try:
            packed.fromlist(part)
        except OverflowError:
            return None
    if sys.byteorder == "big":
        packed.byteswap()
    return dtype, packed.tobytes()


def unpack_numbers(dtype: str, data: memoryview) -> list[Any]:
    """Return the list of which these are the bytes."""
    if dtype == "bool":
        return list(map(bool, data))
    packed = array(_CODE_OF[dtype])
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
