"""The caller's description of a checkpoint (metrics, metadata, message, parent), as plain JSON.

This module uses neither NumPy nor torch. Any value that converts to a float is a metric. Source: docs/format/v1.md,
"manifest.json".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput
from ckstore.model.canonical import SAFE_INT, TOO_LONG_INT, decimal_of_int, fits_json, is_storable_int
from ckstore.model.digest import is_digest
from ckstore.model.document import int_of_decimal, is_big_decimal, refuse, shown

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Description

METADATA_MAX_DEPTH = 100  # maximum number of levels of nested objects and arrays, including the metadata itself

_NUMBER_HINT = "give an int or a float; for a tensor of one element its .item()"
_JSON_HINT = "metadata holds None, bool, int, float, str, list, tuple and dict with str keys"
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def describe(
    metrics: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None,
    message: str,
    parent: str | None,
) -> Description:
    """Return the caller's description, checked and copied, so that later changes of the arguments have no effect.

    Args:
        metrics: Name -> int, float, or another single number with ``__float__`` (a NumPy scalar, a tensor
            without dimensions). Integers beyond ±2^53 become floats, so a float must represent them exactly.
        metadata: JSON-like values (None, bool, int, float, str, list, tuple (as list), dict with str keys
            that do not start with ``$``), nested up to `METADATA_MAX_DEPTH`.
        message: Free text.
        parent: The id of the checkpoint that the new checkpoint continues, or None.

    Raises:
        BadInput: A value is of another kind. The message contains its position.
    """
    if not isinstance(message, str):
        raise BadInput(f"message: wanted a str, got {_kind(message)} {shown(message)}")
    if parent is not None and not is_digest(parent):
        raise BadInput(
            f"parent: wanted the id of a checkpoint or None, got {shown(parent)}", hint="CheckpointInfo.id is one"
        )
    if metrics is not None and not isinstance(metrics, Mapping):
        raise BadInput(f"metrics: wanted a dict of name -> number, got {_kind(metrics)}")
    from ckstore.model.manifest.manifest import Description

    numbers = (
        {} if metrics is None else {_key(name, "metrics"): _number(value, name) for name, value in metrics.items()}
    )
    return Description(numbers, encode_metadata(metadata), _text(message, "message"), parent)


def encode_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as plain JSON, with ``{"$float": "nan"}`` and ``{"$int": "…"}`` for numbers that JSON lacks."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise BadInput(f"metadata: wanted a dict, got {_kind(metadata)}", hint=_JSON_HINT)
    return _json_dict(metadata, "metadata", 1)


def decode_metadata(document: Any) -> Any:
    """Return a copy of one value of metadata in the form that the caller gave, with tuples as lists.

    `document` must come from `encode_metadata` or a parsed manifest.
    """
    if isinstance(document, list):
        return [decode_metadata(item) for item in document]
    if not isinstance(document, dict):
        return document
    if len(document) == 1:
        (name,) = document
        if name == "$float":
            return _NOT_FINITE[document[name]]
        if name == "$int":
            return int_of_decimal(document[name])
    return {name: decode_metadata(value) for name, value in document.items()}


def decoded_metadata(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a `Description` in the form for users; this is the inverse of `encode_metadata`."""
    return {name: decode_metadata(value) for name, value in document.items()}


def check_metadata(metadata: object, where: str, member: str = "metadata") -> dict[str, Any]:
    """Return `metadata` if it has the form that `encode_metadata` returns.

    Args:
        metadata: A result of `document.parse_object`.
        where: The name of the file, for messages.
        member: The name of the part of the file, for messages.

    Raises:
        BadInput: `metadata` has another form, which `decode_metadata` could not read.
    """
    if not isinstance(metadata, dict):
        refuse(where, member, "an object", metadata)
    todo: list[tuple[dict[str, Any] | list[Any], int]] = [(metadata, 1)]
    while todo:
        container, depth = todo.pop()
        if depth > METADATA_MAX_DEPTH:
            refuse(where, member, f"at most {METADATA_MAX_DEPTH} levels", "more")
        if isinstance(container, dict):
            for name in container:
                if name.startswith("$"):
                    refuse(where, member, "no member with $ except a single $float or $int", name)
        below = container.values() if isinstance(container, dict) else container
        todo.extend(
            (value, depth + 1)
            for value in below
            if isinstance(value, list) or (isinstance(value, dict) and not _is_number(value))
        )
    return metadata


def _is_number(value: dict[str, Any]) -> bool:
    if len(value) != 1:
        return False
    ((name, text),) = value.items()
    if name == "$float":
        return isinstance(text, str) and text in _NOT_FINITE
    return name == "$int" and is_big_decimal(text)


def _kind(value: object) -> str:
    return type(value).__name__


def _key(name: object, path: str) -> str:
    if not isinstance(name, str):
        raise BadInput(f"{path}: wanted str keys, got {_kind(name)} {shown(name)}", hint="str(key)")
    return _text(name, path)


def _text(text: str, path: str) -> str:
    if not fits_json(text):
        raise BadInput(
            f"{path}: JSON would join two surrogates of this str into one character ({shown(text)})",
            hint="text.encode('utf-16', 'surrogatepass').decode('utf-16') also joins them",
        )
    return str.__str__(text)  # returns the value of a member of a str enum, and not Colour.RED


def _number(value: Any, name: str) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool) and -SAFE_INT <= value <= SAFE_INT:
        return int(value)
    path = f"metrics[{name!r}]"
    # Check the dtype by name, because NumPy and torch are not imported. Both silently convert True to 1.0.
    dtype = str(getattr(value, "dtype", ""))
    if isinstance(value, bool) or not hasattr(value, "__float__") or dtype.endswith("bool") or "complex" in dtype:
        raise BadInput(f"{path}: wanted a real number, got {_kind(value)} {shown(value)}", hint=_NUMBER_HINT)
    if tuple(getattr(value, "shape", ())) != ():
        raise BadInput(f"{path}: wanted one number, got the shape {tuple(value.shape)}", hint=_NUMBER_HINT)
    if hasattr(value, "detach"):
        value = value.detach()  # float() warns if the loss requires a gradient
    try:
        number = float(value)
        is_exact = not (isinstance(value, int) or "int" in dtype) or int(number) == int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise BadInput(f"{path}: wanted a real number, got {_kind(value)} ({error})", hint=_NUMBER_HINT) from error
    if not is_exact:
        msg = f"{path}: wanted an integer that a 64-bit float represents exactly, got {shown(int(value))}"
        raise BadInput(msg, hint="give it in metadata, which stores every integer")
    return number


def _json_value(value: Any, path: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        plain = int(value)
        if not is_storable_int(plain):
            raise BadInput(f"{path}: {TOO_LONG_INT} cannot be stored", hint="store its digits or hex(value) as a str")
        return plain if -SAFE_INT <= plain <= SAFE_INT else {"$int": decimal_of_int(plain)}
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"$float": str(number)}
    if isinstance(value, (list, tuple, dict)):
        if depth >= METADATA_MAX_DEPTH:
            raise BadInput(f"{path[:200]}…: wanted at most {METADATA_MAX_DEPTH} levels, got more (or a cycle)")
        if isinstance(value, dict):
            return _json_dict(value, path, depth + 1)
        return [_json_value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise BadInput(f"{path}: wanted a JSON-like value, got {_kind(value)} {shown(value)}", hint=_JSON_HINT)


def _json_dict(value: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
    out = {}
    for key, item in value.items():
        name = _key(key, path)
        if name.startswith("$"):
            raise BadInput(f"{path}: a key may not start with $, got {name!r}", hint="rename the key")
        out[name] = _json_value(item, f"{path}[{name!r}]", depth)
    return out
