"""Whether two values are the same in every bit and of the same types, and where they differ."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import decimal
import io
import struct
import types
from collections import OrderedDict, UserDict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.support.states import tensor_bits

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield where `found` differs from `wanted`; a parameter that is wanted may be found as a plain tensor."""
    if isinstance(wanted, torch.Tensor):
        yield from _of_tensors(wanted, found, path)
    elif type(found) is not type(wanted):
        yield f"{path}: wanted a {type(wanted).__name__}, found {type(found).__name__} {found!r:.80}"
    elif isinstance(wanted, np.ndarray):
        if (found.dtype.str, found.shape, found.tobytes()) != (wanted.dtype.str, wanted.shape, wanted.tobytes()):
            yield f"{path}: wanted {wanted!r:.80}, found {found!r:.80}"
    elif isinstance(wanted, dict):
        yield from _of_dicts(wanted, found, path)
    elif isinstance(wanted, list | tuple | deque):
        if len(wanted) != len(found) or getattr(wanted, "maxlen", None) != getattr(found, "maxlen", None):
            yield f"{path}: wanted {len(wanted)} items, found {len(found)}"
        for i, (item, other) in enumerate(zip(wanted, found, strict=False)):
            yield from differences(item, other, f"{path}[{i}]")
    elif type(wanted).__module__.startswith("tensordict."):
        yield from differences((wanted.batch_size, wanted.to_dict()), (found.batch_size, found.to_dict()), path)
    elif _is_its_attributes(wanted):
        yield from differences(_attributes(wanted), _attributes(found), f"{path}.")
    elif _bits(wanted) != _bits(found):
        yield f"{path}: wanted {wanted!r:.80}, found {found!r:.80}"


def _of_dicts(wanted: dict[Any, Any], found: dict[Any, Any], path: str) -> Iterator[str]:
    if [(type(key), key) for key in wanted] != [(type(key), key) for key in found]:
        yield f"{path}: wanted the keys {list(wanted)!r:.200}, found {list(found)!r:.200}"
        return
    if getattr(wanted, "default_factory", None) is not getattr(found, "default_factory", None):
        yield f"{path}: another default_factory"
    if isinstance(wanted, OrderedDict):
        yield from differences(vars(wanted), vars(found), f"{path}.")
    for key, item in wanted.items():
        yield from differences(item, found[key], f"{path}[{key!r}]")


def _of_tensors(wanted: torch.Tensor, found: Any, path: str) -> Iterator[str]:
    kinds = _PLAIN if type(wanted) in _PLAIN else (type(wanted),)
    if type(found) not in kinds:
        yield f"{path}: wanted a {type(wanted).__name__}, found a {type(found).__name__}"
    elif (found.dtype, found.layout, found.shape) != (wanted.dtype, wanted.layout, wanted.shape):
        yield f"{path}: wanted {_kind(wanted)}, found {_kind(found)}"
    elif type(wanted) not in _PLAIN and hasattr(wanted, "__tensor_flatten__"):
        names, context = wanted.__tensor_flatten__()
        yield from differences((names, context), found.__tensor_flatten__(), f"{path}.__tensor_flatten__()")
        for name in names:
            yield from differences(getattr(wanted, name), getattr(found, name), f"{path}.{name}")
    elif wanted.is_quantized:
        yield from differences(_quantized(wanted), _quantized(found), path)
    elif wanted.layout is torch.sparse_coo:
        yield from differences(wanted._indices(), found._indices(), f"{path}.indices")
        yield from differences(wanted._values(), found._values(), f"{path}.values")
    elif wanted.layout is torch.sparse_csr:
        for part in ("crow_indices", "col_indices", "values"):
            yield from differences(getattr(wanted, part)(), getattr(found, part)(), f"{path}.{part}")
    elif tensor_bits(wanted) != tensor_bits(found):
        yield f"{path}: {_kind(wanted)} of other values: wanted {wanted!r:.200}, found {found!r:.200}"


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}"


def _quantized(tensor: torch.Tensor) -> list[Any]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [tensor.int_repr(), tensor.q_scale(), tensor.q_zero_point()]
    return [tensor.int_repr(), tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]


def _is_its_attributes(value: object) -> bool:
    """Whether a value is no more than what is set on it."""
    if dataclasses.is_dataclass(value) or isinstance(value, argparse.Namespace | types.SimpleNamespace | UserDict):
        return True
    return hasattr(value, "__dict__") and type(value).__eq__ is object.__eq__ and not callable(value)


def _attributes(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    attributes: dict[str, Any] = vars(value)
    return attributes


def _bits(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.dtype.str, value.tobytes()
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, complex):
        return struct.pack(">dd", value.real, value.imag)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, decimal.Decimal):
        return str(value)  # one that is no number is not equal to itself
    if isinstance(value, dt.datetime):
        return value.isoformat(), value.fold, repr(value.tzinfo)
    if isinstance(value, io.BytesIO):
        return value.getvalue(), value.tell()
    compares: Any = type(value).__eq__
    return repr(value) if compares is object.__eq__ else value
