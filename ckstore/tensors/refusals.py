"""What to do about a value that cannot be stored; nothing is imported for it."""

from __future__ import annotations

import datetime as dt
import enum
import fractions
import math
import pathlib
import random
import types
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NoReturn

from ckstore.errors import CannotStore
from ckstore.model.canonical import SAFE_INT, is_storable_int
from ckstore.model.manifest.manifest import MAX_ELEMENTS

_HINTS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "store value.value or value.name"),
    (OrderedDict, "store collections.OrderedDict(value)"),
    (dict, "store dict(value), and make the class again after loading"),
    (list, "store list(value)"),
    (tuple, "store tuple(value)"),
    (bool, "store bool(value)"),
    (int, "store int(value)"),
    (float, "store float(value)"),
    (complex, "store complex(value)"),
    (str, "store str(value)"),
    ((bytes, bytearray, memoryview), "store bytes(value)"),
    ((set, frozenset), "store set(value)"),
    (deque, "store collections.deque(value)"),
    (range, "store list(value)"),
    (pathlib.PurePath, "store str(value)"),
    ((dt.date, dt.time), "store value.isoformat()"),
    (fractions.Fraction, "store str(value)"),
    (random.Random, "store value.getstate()"),
    (
        (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type),
        "leave it out, or store its name",
    ),
    ((types.ModuleType, types.GeneratorType), "leave it out"),
)
_HINTS_BY_NAME = {
    "argparse.Namespace": "store vars(value)",
    "torch.dtype": "store str(value)",
    "torch.layout": "store str(value)",
    "torch._C.Generator": "store value.get_state()",
    "torch.Generator": "store value.get_state()",
    "torch.UntypedStorage": "store a tensor over it",
    "torch.storage.UntypedStorage": "store a tensor over it",
    "torch.storage.TypedStorage": "store a tensor over it",
    "numpy.random._generator.Generator": "store value.bit_generator.state",
    "numpy.random.mtrand.RandomState": "store value.get_state(legacy=False)",
    "numpy.ma.MaskedArray": "store value.data and value.mask",
}


def check_numbers(path: str, shape: Sequence[int], strides: Sequence[int] = ()) -> None:
    """Raise if a manifest may not say these numbers; only tensors without as many bytes can have such ones.

    Raises:
        CannotStore: It may not.
    """
    most = max((*shape, *strides), default=0)
    if most > SAFE_INT:
        why = f"sizes and strides are at most 2^53, found {most}: it cannot be stored"
        raise CannotStore(path, why, hint="store a smaller tensor, and expand it again after loading")
    if math.prod(size or 1 for size in shape) >= MAX_ELEMENTS:
        why = f"sizes other than 0 give less than 2^63 elements, found the shape {tuple(shape)}: it cannot be stored"
        raise CannotStore(path, why, hint="store a smaller tensor, and its shape beside it")


def refuse_value(value: object, path: str) -> NoReturn:
    """Raise the error for a value whose type the format does not hold.

    Raises:
        CannotStore: Always.
    """
    raise CannotStore(path, f"{type_name(type(value))} cannot be stored", hint=_hint(value))


def refuse_key(key: object, path: str, reason: str) -> CannotStore:
    """Return the error for a key that the format does not hold."""
    why = f"a key of type {type_name(type(key))}, {_text(key)}, which {reason}, cannot be stored"
    hint = "keys are str, int, float, bool, None, or tuples of these; store a list of (key, value) pairs instead"
    return CannotStore(path, why, hint=hint)


def _text(key: object) -> str:
    """Return a key as a message shows it; an integer of more digits than str() takes is told by its size."""
    return f"{key!a:.60}" if type(key) is not int or is_storable_int(key) else f"of {key.bit_length()} bits"


def type_name(kind: type) -> str:
    """Return the full name of a type, without the module for built-in ones."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _hint(value: object) -> str:
    name = type_name(type(value))
    if name in _HINTS_BY_NAME:
        return _HINTS_BY_NAME[name]
    for kinds, hint in _HINTS:
        if isinstance(value, kinds):
            return hint
    if hasattr(type(value), "__dataclass_fields__"):
        return "store dataclasses.asdict(value)"
    if hasattr(type(value), "__array__"):
        return "store numpy.asarray(value)"
    if callable(getattr(value, "state_dict", None)):
        return "it has state_dict but not load_state_dict: add that, or store value.state_dict()"
    return "store what it consists of, or give its class state_dict and load_state_dict"
