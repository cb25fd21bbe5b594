"""Encode values of Python's standard library as nodes, and check the nodes of plain torch and NumPy values.

Source: docs/format/v1.md, "Nodes". This module imports neither torch nor NumPy. `tensors` creates their values.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ckstore.errors import BadInput
from ckstore.model.canonical import MAX_NUMBER_DIGITS, SAFE_INT, canonical_text, fits_json
from ckstore.model.document import shown
from ckstore.model.manifest.nodes import (
    NotStored,
    bytes_in,
    bytes_of_text,
    decode_key,
    decode_scalar,
    encode_key,
    identity_of,
    text_of_bytes,
)

_KINDS = (list, dict, tuple, set, frozenset, str, bytes, bool, int, float, complex, deque, Counter, OrderedDict)
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in _KINDS}  # allowed factories of a defaultdict
FACTORY_NAMES = {kind: name for name, kind in FACTORIES.items()}

_PATHS: dict[str, type[PurePath]] = {kind.__name__: kind for kind in (PosixPath, PurePosixPath, PureWindowsPath)}
_DECIMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:E[+-]?[0-9]{1,18})?|Infinity|s?NaN[0-9]*)\Z", re.ASCII)
_OFFSET = re.compile(r"[+-][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{6})?)?\Z")
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,40}(?:/[A-Za-z0-9_+-]{1,40}){0,3}\Z")
CLASS_MOST = 500
_TORCH_NAMES = {
    "torch.dtype": re.compile(r"(?:bool|(?:b?float|b?complex|q?u?int|bits)[0-9][a-z0-9_]{0,24})\Z"),
    "torch.layout": re.compile(r"(?:strided|jagged|_mkldnn|sparse_(?:coo|csr|csc|bsr|bsc))\Z"),
    "torch.memory_format": re.compile(r"(?:preserve_format|contiguous_format|channels_last(?:_3d)?)\Z"),
    "torch.qscheme": re.compile(r"per_(?:tensor|channel)_(?:affine(?:_float_qparams)?|symmetric)\Z"),
}
TORCH_NAMED = tuple(_TORCH_NAMES)
"""Classes of torch whose values are identified by their names in torch, such as ``torch.qint8``."""


def encode_decimal(value: decimal.Decimal) -> Any:
    """Return the node of a Decimal, with all its digits and its exponent."""
    text = str(value)
    if len(text) > MAX_NUMBER_DIGITS:
        raise NotStored(f"a Decimal of more than {MAX_NUMBER_DIGITS:,} digits", "store str(value)")
    return ["decimal", text]


def encode_date(value: dt.date) -> Any:
    """Return the node of a date."""
    return ["date", value.isoformat()]


def encode_timedelta(value: dt.timedelta) -> Any:
    """Return the node of a timedelta."""
    return ["timedelta", value.days, value.seconds, value.microseconds]


def encode_datetime(value: dt.datetime) -> Any:
    """Return the node of a datetime."""
    wall = value.replace(tzinfo=None, fold=0).isoformat(timespec="microseconds")
    return ["datetime", wall, value.fold, None if value.tzinfo is None else _zone(value.tzinfo)]


def _zone(zone: dt.tzinfo) -> str:
    if type(zone) is ZoneInfo and _ZONE.match(zone.key or ""):  # a zone that was read from a file may have no name
        return zone.key
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        if zone.tzname(None) == dt.timezone(offset).tzname(None):
            return dt.datetime(2000, 1, 1, tzinfo=zone).isoformat()[19:]
    reason = f"a datetime in the time zone {zone!r:.60}"
    raise NotStored(reason, "store value.astimezone(datetime.timezone.utc), or in a zone of zoneinfo")


def encode_path(value: PurePath) -> Any:
    """Return the node of a path, or raise NotStored if JSON would change the path."""
    text = str(value)
    if not fits_json(text):
        raise NotStored("a path with two surrogates that JSON would join", "store os.fsencode(value)")
    return ["path", type(value).__name__, text]


def encode_set(value: set[Any] | frozenset[Any]) -> Any:
    """Return the node of a set, with its elements in an order that depends only on the elements."""
    nodes = []
    for item in [*value]:  # copy first, because another thread may add an element
        try:
            nodes.append(encode_key(item))
        except ValueError as error:
            reason = f"a {type(value).__name__} with the element {shown(item):.60}, which {error},"
            hint = "elements are str, int, float, bool, None, or tuples of these; store a list"
            raise NotStored(reason, hint) from error
    alike = {type(node) for node in nodes}
    nodes.sort(key=None if alike in ({int}, {str}) else canonical_text)
    return ["set" if type(value) is set else "frozenset", nodes]


def encode_held_bytes(kind: str, data: bytes) -> Any:
    """Return the node of a short ``bytearray`` or ``io.BytesIO``."""
    return [kind, text_of_bytes(data)]


def is_python_value(node: list[Any]) -> bool:
    """Return whether `decode_value` or `tensors` can decode a node whose tag is a string."""
    check = _CHECKS.get(node[0])
    return check is not None and check(node[1:])


def decode_value(node: Any) -> object:
    """Return the value of a node that is neither a container, nor a leaf, nor a value of torch or NumPy."""
    if not isinstance(node, list) or node[0] not in _CHECKS:
        return decode_scalar(node)
    make = _MAKE.get(node[0])
    if make is None:
        raise ValueError(f"wanted the node of a value of Python, found {node[0]!r}")
    return make(*node[1:])


def _datetime(wall: str, fold: int, zone: str | None) -> dt.datetime:
    return dt.datetime.fromisoformat(wall).replace(fold=fold, tzinfo=None if zone is None else _zone_of(zone))


def _zone_of(text: str) -> dt.tzinfo | None:
    if _OFFSET.match(text):
        return dt.datetime.fromisoformat(f"2000-01-01T00:00:00{text}").tzinfo
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:
        msg = f"the time zone {text} of a datetime is not known on this machine"
        raise BadInput(msg, hint="install tzdata: pip install tzdata") from error


def _is_decimal(held: list[Any]) -> bool:
    if len(held) != 1 or type(held[0]) is not str or len(held[0]) > MAX_NUMBER_DIGITS:
        return False
    try:
        return _DECIMAL.match(held[0]) is not None and str(decimal.Decimal(held[0])) == held[0]
    except decimal.InvalidOperation:
        return False


def _is_date(held: list[Any]) -> bool:
    if len(held) != 1 or type(held[0]) is not str:
        return False
    try:
        return dt.date.fromisoformat(held[0]).isoformat() == held[0]
    except ValueError:
        return False


def _is_datetime(held: list[Any]) -> bool:
    if len(held) != 3 or type(held[0]) is not str or type(held[1]) is not int or held[1] not in (0, 1):
        return False
    try:
        wall = dt.datetime.fromisoformat(held[0])
        if wall.tzinfo is not None or wall.isoformat(timespec="microseconds") != held[0]:
            return False
        zone = held[2]
        if type(zone) is str and _OFFSET.match(zone):
            return dt.datetime.fromisoformat(f"2000-01-01T00:00:00{zone}").isoformat()[19:] == zone
    except ValueError:
        return False
    return zone is None or (type(zone) is str and _ZONE.match(zone) is not None)


def _is_timedelta(held: list[Any]) -> bool:
    if len(held) != 3 or any(type(part) is not int or abs(part) > SAFE_INT for part in held):
        return False
    try:
        value = dt.timedelta(*held)
    except OverflowError:
        return False
    return [value.days, value.seconds, value.microseconds] == held


def _is_path(held: list[Any]) -> bool:
    if len(held) != 2 or type(held[0]) is not str or held[0] not in _PATHS or type(held[1]) is not str:
        return False
    return str(_PATHS[held[0]](held[1])) == held[1]


def _is_set(held: list[Any]) -> bool:
    if len(held) != 1 or type(held[0]) is not list:
        return False
    identities = [identity_of(node) for node in held[0]]
    return None not in identities and len(set(identities)) == len(identities)


def _is_torch_size(held: list[Any]) -> bool:
    sizes = held[0] if len(held) == 1 and type(held[0]) is list else [None]
    return all(type(size) is int and abs(size) <= SAFE_INT for size in sizes)


def _is_bytes(held: list[Any]) -> bool:
    return len(held) == 1 and bytes_in(held[0]) is not None


def _is_text(held: list[Any]) -> bool:
    return len(held) == 1 and type(held[0]) is str


def _named_as(pattern: re.Pattern[str]) -> Callable[[list[Any]], bool]:
    return lambda held: _is_text(held) and pattern.match(held[0]) is not None


def is_class_name(text: object) -> bool:
    """Return whether `text` can be the name of a class or a function."""
    return type(text) is str and 1 <= len(text) <= CLASS_MOST


def _is_enum(held: list[Any]) -> bool:
    return len(held) == 2 and is_class_name(held[0]) and is_class_name(held[1])


_CHECKS: dict[str, Any] = {
    "bytearray": _is_bytes,
    "date": _is_date,
    "datetime": _is_datetime,
    "decimal": _is_decimal,
    "enum": _is_enum,
    "frozenset": _is_set,
    "global": lambda held: len(held) == 1 and is_class_name(held[0]),
    "io.BytesIO": _is_bytes,
    "numpy.str_": _is_text,
    "path": _is_path,
    "set": _is_set,
    "timedelta": _is_timedelta,
    "torch.Size": _is_torch_size,
    "torch.device": _named_as(re.compile(r"[a-z][a-z0-9_]{0,31}(?::[0-9]{1,4})?\Z")),
    **{tag: _named_as(pattern) for tag, pattern in _TORCH_NAMES.items()},
}
_MAKE: dict[str, Any] = {
    "bytearray": lambda text: bytearray(bytes_of_text(text)),
    "date": dt.date.fromisoformat,
    "datetime": _datetime,
    "decimal": decimal.Decimal,
    "frozenset": lambda nodes: frozenset(map(decode_key, nodes)),
    "io.BytesIO": lambda text: io.BytesIO(bytes_of_text(text)),
    "path": lambda kind, text: _PATHS[kind](text),
    "set": lambda nodes: set(map(decode_key, nodes)),
    "timedelta": dt.timedelta,
}
