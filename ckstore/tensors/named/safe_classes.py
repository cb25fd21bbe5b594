"""The classes and functions that states and manifests may name.

A manifest may be from an untrusted source. Therefore, a name in a manifest is only looked up among the classes and
functions that this program has allowed. The name of an enumeration is also looked up in the modules that this program
has imported. A name can only cause the import of three modules of Python (argparse, collections, types), and cannot run
other code. This module does not import torch.
"""

from __future__ import annotations

import enum
import importlib
import sys
import threading
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from ckstore.errors import BadInput, CannotStore
from ckstore.model.names import plain

_NAMED = "__module__", "__qualname__"
_BUILT_IN = {"argparse.Namespace": "argparse", "collections.UserDict": "collections", "types.SimpleNamespace": "types"}
"""Classes of Python whose objects consist of their attributes: name -> module."""

_lock = threading.Lock()
_allowed: dict[str, Any] = {}
"""Name -> class or function. The dict is never changed, only replaced, so readers need no lock."""


def add_safe_globals(safe_globals: Iterable[Any]) -> None:
    """Allow classes and functions in states, such as dataclasses, named tuples, and subclasses of Tensor.

    A load creates objects of these classes from the fields in a checkpoint, without calling ``__init__``. Allowed
    functions are returned, but not called. Classes and functions passed to `torch.serialization.add_safe_globals` are
    also allowed. A call of `ckstore.add_safe_globals` does not change the behaviour of `torch.load`. Any thread may
    call it, any number of times.

    Args:
        safe_globals: Classes and functions. An item may also be a pair: a class or function, and the name under which
            it was saved.

    Raises:
        BadInput: An item has no name by which a load could find it.
    """
    global _allowed  # noqa: PLW0603 - replaced as a whole
    added = {}
    for given in safe_globals:
        kind = given[0] if isinstance(given, tuple) else given
        if not all(isinstance(getattr(kind, attribute, None), str) for attribute in _NAMED):
            msg = f"add_safe_globals takes classes and functions, got {kind!r:.80}"
            raise BadInput(msg, hint="give the class: ckstore.add_safe_globals([MyConfig])")
        added.update(_named(given))
    with _lock:
        _allowed = {**_allowed, **added}


def get_safe_globals() -> list[Any]:
    """Return the classes and functions passed to `add_safe_globals`, without those of torch."""
    return list(dict.fromkeys(_allowed.values()))


def name_of(kind: Any) -> str:
    """Return the name that a manifest has for a class or function."""
    return f"{getattr(kind, '__module__', None)}.{getattr(kind, '__qualname__', None)}"


def is_allowed(kind: Any) -> bool:
    """Whether a load in this program would find this class or function by its name."""
    return _found(name_of(kind)) is kind


def find(name: str, path: str) -> Any:
    """Return the allowed class or function with this name. `path` names the value that needs it, for the message."""
    found = _found(name)
    if found is None:
        raise _not_allowed(name, path)
    return found


def is_findable_enum(kind: type[enum.Enum]) -> bool:
    """Whether a load in this program would find this enumeration by its name."""
    name = name_of(kind)
    return _found(name) is kind or _imported_enum(name) is kind


def find_enum(name: str, path: str) -> type[enum.Enum]:
    """Return the enumeration with this name, which must be allowed or in a module that this program has imported."""
    # An imported enumeration that was not allowed does no harm, because its members already exist.
    found = _found(name) or _imported_enum(name)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return found
    raise _not_allowed(name, path)


def _not_allowed(name: str, path: str) -> BadInput:
    msg = f"{plain(path) or 'the state itself'} needs {name}, which this program has not allowed"
    module, _, own = name.rpartition(".")
    hint = f"if you trust it: from {module} import {own}; ckstore.add_safe_globals([{own}])"
    return BadInput(msg, hint=hint)


def _named(given: Any) -> dict[str, Any]:
    """Return the names of one entry: the name of its class or function, and the name that was passed with it."""
    if isinstance(given, tuple):
        kind, other = given
        return {name_of(kind): kind, other: kind}
    return {name_of(given): given}


def _found(name: str) -> Any:
    if (found := _allowed.get(name)) is not None:
        return found
    if name in _BUILT_IN:
        return getattr(importlib.import_module(_BUILT_IN[name]), name.rpartition(".")[2])
    if name == TENSOR_DICT:
        return getattr(sys.modules.get("tensordict"), "TensorDict", None)
    serialization: Any = sys.modules.get("torch.serialization")
    if serialization is None:
        return None
    for given in serialization.get_safe_globals():
        if (found := _named(given).get(name)) is not None:
            return found
    return None


def _imported_enum(name: str) -> Any:
    """Return the enumeration with this name in an imported module, or None. This function only reads dictionaries."""
    module, _, own = name.rpartition(".")
    inner: list[str] = []
    while module:
        inner.insert(0, own)
        found: Any = sys.modules.get(module)
        if isinstance(found, ModuleType):
            for part in inner:
                found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
            if isinstance(found, enum.EnumMeta) and name_of(found) == name:
                return found
        module, _, own = module.rpartition(".")
    return None


TENSOR_DICT = "tensordict.TensorDict"
_TENSOR_DICT_FIELDS = ["items", "batch_size", "device", "names"]


def is_tensor_dict(value: object) -> bool:
    """Whether `value` is a plain TensorDict. A lazy or memory-mapped one is stored as its `state_dict()`."""
    library = sys.modules.get("tensordict")
    return library is not None and type(value) is library.TensorDict


def fields_of_tensor_dict(value: Any, path: str) -> dict[str, Any]:
    """Return the fields of a TensorDict."""
    items = dict(value.items())
    other = next((name for name, item in items.items() if not _is_item(item)), None)
    if other is not None:
        reason = f"a TensorDict with {other!r}, which is not a tensor, cannot be stored"
        raise CannotStore(path, reason, hint="store value.to_dict()")
    names = value.names if any(name is not None for name in value.names) else None
    return dict(zip(_TENSOR_DICT_FIELDS, (items, value.batch_size, value.device, names), strict=True))


def tensor_dict_of(fields: Mapping[str, Any], path: str) -> object:
    """Build a TensorDict from its fields, on the device of its items."""
    torch, library = sys.modules["torch"], sys.modules["tensordict"]
    try:
        items, batch_size, device, names = (fields[name] for name in _TENSOR_DICT_FIELDS)
        if not all(map(_is_item, items.values())):
            raise TypeError("an item is not a tensor")  # noqa: TRY301
        if device is not None:
            device = next((item.device for item in items.values() if item.device is not None), device)
        return library.TensorDict(items, batch_size=torch.Size(batch_size), device=device, names=names)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        msg = f"{path or 'the state itself'}: the fields of a TensorDict do not fit: {type(error).__name__}: {error}"
        raise BadInput(msg, hint="load it with the version of tensordict that saved it") from error


def _is_item(item: object) -> bool:
    return is_tensor_dict(item) or isinstance(item, sys.modules["torch"].Tensor)
