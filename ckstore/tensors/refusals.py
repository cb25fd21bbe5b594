"""Errors and hints for values that cannot be stored.

This module knows classes of other libraries by name, and does not import them.
"""

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
from typing import Any, NoReturn

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
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType, type), "leave it out, or store its name"),
    ((types.ModuleType, types.GeneratorType), "leave it out"),
)
_HINTS_BY_NAME = {
    "torch.utils.data.dataloader.DataLoader": "use StatefulDataLoader of torchdata, which saves its position",
    "omegaconf.dictconfig.DictConfig": "store omegaconf.OmegaConf.to_container(value)",
    "omegaconf.listconfig.ListConfig": "store omegaconf.OmegaConf.to_container(value)",
    "torch._C.Generator": "store value.get_state()",
    "torch.Generator": "store value.get_state()",
    "torch.UntypedStorage": "store a tensor over it",
    "torch.storage.UntypedStorage": "store a tensor over it",
    "torch.storage.TypedStorage": "store a tensor over it",
    "numpy.random._generator.Generator": "store value.bit_generator.state, and the seed if it spawns other generators",
    "numpy.random.mtrand.RandomState": "store value.get_state(legacy=False)",
    "numpy.ma.MaskedArray": "store value.data and value.mask",
    "numpy.ma.core.MaskedArray": "store value.data and value.mask",  # NumPy 1
}
_HINTS_BY_ATTRIBUTE = (
    ("__dataclass_fields__", "store dataclasses.asdict(value)"),
    ("model_dump", "store value.model_dump()"),
    ("__attrs_attrs__", "store attrs.asdict(value)"),
)
"""An attribute that a decorator or base class of a library adds to a class, and the hint for objects of that class."""


_HEAP_TYPE, _NOT_MADE = 1 << 9, 1 << 7
"""Flags of a type in CPython (Include/object.h): it was made by a class statement, and it cannot be instantiated."""


def check_numbers(path: str, shape: Sequence[int], strides: Sequence[int] = ()) -> None:
    """Raise if a manifest may not contain these sizes and strides.

    Only an expanded or an empty tensor can have sizes or strides that are too large.
    """
    most = max((*shape, *strides), default=0)
    if most > SAFE_INT:
        reason = f"sizes and strides are at most 2^53, found {most}: it cannot be stored"
        raise CannotStore(path, reason, hint="store a smaller tensor, and expand it again after loading")
    if math.prod(size or 1 for size in shape) >= MAX_ELEMENTS:
        reason = f"sizes other than 0 give less than 2^63 elements, found the shape {tuple(shape)}: it cannot be stored"
        raise CannotStore(path, reason, hint="store a smaller tensor, and its shape as another value")


def refuse_value(value: object, path: str) -> NoReturn:
    """Raise the error for a value of a type that the format does not support."""
    raise CannotStore(path, f"{type_name(type(value))} cannot be stored", hint=_hint(value))


def refuse_in_optimizer(value: object, path: str) -> NoReturn:
    """Raise the error for an object with `state_dict` in the state of an optimizer.

    After a load, the optimizer would have a dict in place of the object.
    """
    kind = type_name(type(value))
    reason = f"{kind} in the state of an optimizer cannot be stored as its state_dict()"
    reason += ": the optimizer would get a dict instead of the object"
    hint = f"remove state_dict from its class, and allow the class: {how_to_allow(type(value))}"
    raise CannotStore(path, reason, hint=hint)


def refuse_key(key: object, path: str, reason: str) -> CannotStore:
    """Return the error for a key that the format does not support."""
    # The message has only the size of an integer that has too many digits for str().
    text = f"{key!a:.60}" if type(key) is not int or is_storable_int(key) else f"of {key.bit_length()} bits"
    cause = f"a key of type {type_name(type(key))}, {text}, which {reason}, cannot be stored"
    hint = "keys are str, int, float, bool, None, or tuples of these; store a list of (key, value) pairs instead"
    return CannotStore(path, cause, hint=hint)


def type_name(kind: type) -> str:
    """Return the full name of a type, without the module if the type is built-in."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def is_made_of_fields(kind: Any) -> bool:
    """Whether objects of a class consist only of their attributes, and are not also a dict, list or Tensor."""
    # An object with `state_dict` is stored as its state instead.
    if not isinstance(kind, type) or not kind.__flags__ & _HEAP_TYPE or kind.__flags__ & _NOT_MADE:
        return kind is types.SimpleNamespace
    made_by: Any = kind.__new__
    has_fields = kind.__dictoffset__ != 0 or any("__slots__" in vars(base) for base in kind.__mro__)
    is_stateful = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    return made_by is object.__new__ and has_fields and not is_stateful


def _hint(value: object) -> str:
    name = type_name(type(value))
    if name in _HINTS_BY_NAME:
        return _HINTS_BY_NAME[name]
    for kinds, hint in _HINTS:
        if isinstance(value, kinds):
            return hint
    kind = type(value)
    for attribute, instead in _HINTS_BY_ATTRIBUTE:
        if hasattr(kind, attribute):
            return f"allow its class: {how_to_allow(kind)}; or {instead}" if is_made_of_fields(kind) else instead
    if hasattr(type(value), "__array__"):
        return "store numpy.asarray(value)"
    if callable(getattr(value, "state_dict", None)):
        return "it has state_dict but not load_state_dict: add that, or store value.state_dict()"
    if is_made_of_fields(kind):
        return f"allow its class: {how_to_allow(kind)}"
    return "store what it consists of, or give its class state_dict and load_state_dict"


def how_to_allow(kind: type) -> str:
    """Return the line of code that allows a class."""
    line = f"ckstore.add_safe_globals([{kind.__qualname__.rpartition('<locals>.')[2]}])"
    is_own = kind.__module__ in ("__main__", "builtins") or "<locals>" in kind.__qualname__
    return line if is_own else f"from {kind.__module__} import {kind.__qualname__.partition('.')[0]}; {line}"
