"""Convert plain values other than Python's numbers and strings to nodes, and nodes to plain values."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from array import array
from collections.abc import Callable
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any, TypeGuard

from ckstore.errors import BadInput
from ckstore.model.canonical import SAFE_INT
from ckstore.model.manifest.manifest import Node
from ckstore.model.manifest.python_values import (
    TORCH_NAMED,
    decode_value,
    encode_date,
    encode_datetime,
    encode_decimal,
    encode_path,
    encode_set,
    encode_timedelta,
)

PLAIN: dict[type, Callable[[Any], Node]] = {
    set: encode_set,
    frozenset: encode_set,
    decimal.Decimal: encode_decimal,
    dt.datetime: encode_datetime,
    dt.date: encode_date,
    dt.timedelta: encode_timedelta,
    PosixPath: encode_path,
    PurePosixPath: encode_path,
    PureWindowsPath: encode_path,
}
"""Exact type -> function that returns the node of a value, or raises `python_values.NotStored`."""


def is_named_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether the class of `value` was made by collections.namedtuple or typing.NamedTuple."""
    fields = getattr(type(value), "_fields", None)
    return isinstance(value, tuple) and isinstance(fields, tuple) and hasattr(type(value), "_asdict")


def torch_value(value: Any) -> Node | None:
    """Return the node of a plain torch value, such as a dtype, layout, device or size, or None for other values."""
    torch: Any = sys.modules.get("torch")
    kind = type(value)
    if torch is None:
        return None
    if kind is torch.Size and all(type(size) is int and abs(size) <= SAFE_INT for size in value):
        return ["torch.Size", list(value)]
    tag = f"torch.{kind.__name__}"
    if tag in TORCH_NAMED and kind is getattr(torch, kind.__name__):
        return [tag, str(value).removeprefix("torch.")]
    return ["torch.device", str(value)] if kind is torch.device else None


def value_of(node: Node) -> object:
    """Return the value of a node that is neither a container nor a leaf."""
    tag = node[0] if isinstance(node, list) else ""
    if tag == "numpy":
        from ckstore.tensors import numpy_leaves

        return numpy_leaves.decode_scalar(node[1], node[2])
    if tag == "numpy.str_":
        import numpy as np

        return np.str_(node[1])
    return _of_torch(tag, node[1]) if tag.startswith("torch.") else decode_value(node)


def _of_torch(tag: str, held: Any) -> object:
    import torch

    if tag == "torch.Size":
        return torch.Size(held)
    if tag == "torch.device":
        try:
            return torch.device(held)
        except RuntimeError as error:
            raise _unknown(tag, held) from error
    # The type is checked, because the name may be that of a function of torch. `getattr` would import modules of torch
    # by name, so it is not used.
    value = vars(torch).get(held)
    if type(value) is not getattr(torch, tag.removeprefix("torch.")):
        raise _unknown(tag, held)
    return value


def _unknown(tag: str, held: object) -> BadInput:
    msg = f"{tag} {held} is not known to torch {sys.modules['torch'].__version__}"
    return BadInput(msg, hint="load it with the torch that saved it, or select the rest")


NUMBERS_FROM_COUNT = 1024  # for shorter lists, nodes in the manifest cost less than a leaf
_PART_COUNT = 1024
"""The number of items that are checked and packed at a time, so that they stay in the processor's cache."""
_CODES = {int: ("int64", "q"), float: ("float64", "d"), bool: ("bool", "B")}
_CODE_OF = {"int64": "q", "float64": "d"}


def pack_numbers(values: list[Any]) -> tuple[str, bytes, int] | None:
    """Return dtype, bytes and length of a long list whose items are all int, all float or all bool.

    Each item keeps all its bits. The length is the number of packed items, because another thread may append to the
    list meanwhile. Return None for any other list, and if an integer does not fit in 64 bits.
    """
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
    return dtype, packed.tobytes(), len(packed)


def unpack_numbers(dtype: str, data: memoryview) -> list[Any]:
    """Return the list that `pack_numbers` converted to these bytes."""
    if dtype == "bool":
        return list(map(bool, data))
    packed = array(_CODE_OF[dtype])
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()
