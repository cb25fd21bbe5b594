"""Find the argument of a failed call that does not have the type in the signature.

Only calls that failed are checked. A correct call costs nothing, and a value of another type that works is accepted.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ckstore.model.sizes import is_number


def wrong_argument(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, str, object] | None:
    """Return the name, the wanted type and the value of the first argument of another type, or None if all types fit.

    None is also returned if the arguments do not fit the signature, which Python reports.
    """
    try:
        given = inspect.signature(method).bind(*args, **kwargs).arguments
        hints, texts = _hints(method)
        for options in [name for name in given if typing.get_origin(hints.get(name)) is typing.Unpack]:
            more_hints, more_texts = _hints(*typing.get_args(hints[options]))
            if given[options].keys() - more_hints.keys():
                return None
            given, hints, texts = given | given.pop(options), hints | more_hints, texts | more_texts
    except (TypeError, NameError, OSError):  # also if the source is not installed
        return None
    wrong = (name for name, value in given.items() if name in hints and not _fits(value, hints[name]))
    return next(((name, texts[name], given[name]) for name in wrong), None)


def _hints(thing: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the types of the arguments of a function, or of the members of a `TypedDict`, and their texts."""
    texts = {name: getattr(hint, "__forward_arg__", hint) for name, hint in thing.__annotations__.items()}
    words = {*re.findall(r"\w+", " ".join(map(str, texts.values())))}
    module = inspect.getmodule(thing)
    names: dict[str, Any] = {}
    # The module imports most types only for type checkers.
    for node in ast.walk(ast.parse(inspect.getsource(module) if module else "")):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            if (name := alias.asname or alias.name) in words and not hasattr(module, name):
                try:
                    names[name] = getattr(importlib.import_module(node.module), alias.name)
                except ImportError:  # a framework that is not installed
                    names[name] = Any
    return typing.get_type_hints(thing, localns=names), texts


def _fits(value: object, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in parts)
    if origin is typing.Literal:
        return isinstance(value, str | bool) and value in parts
    if hint in (int, float):
        return is_number(value) and (hint is float or hasattr(value, "__index__"))
    kind = origin or hint
    if not isinstance(kind, type):  # Any, or a type variable
        return True
    try:
        if not isinstance(value, kind):
            return False
    except TypeError:  # a protocol for type checkers
        return True
    if kind is str or not issubclass(kind, Iterable):
        return True
    return not isinstance(value, str | bytes) and _items_fit(value, parts)


def _items_fit(value: object, parts: tuple[Any, ...]) -> bool:
    # An iterator may be infinite.
    if not parts or not isinstance(value, Collection):
        return True
    try:
        items = [*value]
    except TypeError:  # a tensor without dimensions
        return False
    if isinstance(value, Mapping) and len(parts) == 2:
        return all(_fits(key, parts[0]) and _fits(value[key], parts[1]) for key in items)
    if len(parts) > 1 and parts[1] is not ...:  # a tuple with a type for each item
        return len(items) == len(parts) and all(map(_fits, items, parts))
    return all(_fits(one, parts[0]) for one in items)
