"""What all JSON documents of a store have in common: strict JSON, a version, times.

Strict: ASCII, no name twice in an object, no number that JSON readers disagree about. What else a
document must hold is checked by `model/manifest/parse` and `model/settings/settings`.
Source: docs/format/v1.md.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Collection, Mapping
from datetime import datetime
from itertools import accumulate
from typing import Any, NoReturn

from ckstore.errors import BadInput, NewerFormat
from ckstore.model.canonical import MAX_NUMBER_DIGITS, PART_DIGITS, SAFE_INT

_MAX_DIGITS = len(str(SAFE_INT))
_LONG = b"," + b"0" * _MAX_DIGITS
_BEFORE_NUMBER = b"[,:- \t\r\n"
_KINDS = bytes(ord("0" if b in b"0123456789" else "," if b in _BEFORE_NUMBER else "x") for b in range(256))
"""For each byte whether it is a digit, may stand before a number, or neither."""
_BIG_PATTERN = re.compile(r"-?[1-9][0-9]{15,}\Z")
CREATED_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z\Z")


# Far below where Python's C parser reaches the end of its stack, and the process dies.
MAX_LEVELS = 500
"""Levels of a document; a state of `manifest.MAX_DEPTH` takes three for each of its own."""
_REST = bytes(set(range(256)) - set(b'[]{}"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STEPS = {ord("["): 1, ord("]"): -1}
_QUICK_LEVELS = 8
# `split` needs a hundred bytes for each quote: of a whole manifest of 512 MiB that is the host's memory.
_PIECE_BYTES = 2**18


class _Refused(ValueError):
    """Raised inside the parser's hooks, where the name of the document is not known."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value: object) -> str:
    """Return `value` as a message shows it: cut to a line, however long or deep it is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of more digits than str() takes
        return f"{type(value).__name__} with thousands of digits"


def refuse(where: str, what: str, wanted: str, found: object, *, words: bool = False) -> NoReturn:
    """Raise the error for content that is not as the format says."""
    # `found`: the value that is there; with `words`, what to say of it.
    raise BadInput(f"{where}: {what}: wanted {wanted}, found {found if words else shown(found)}")


def is_big_decimal(text: object) -> bool:
    """Whether `text` is an integer outside ±2^53 in decimal, as `decimal_of_int` writes it."""
    if not isinstance(text, str) or len(text) > MAX_NUMBER_DIGITS + 1 or _BIG_PATTERN.match(text) is None:
        return False
    return len(text) > _MAX_DIGITS + 1 or abs(int(text)) > SAFE_INT


def int_of_decimal(text: str) -> int:
    """Return the integer that `decimal_of_int` wrote or `is_big_decimal` approved, which bounds its length."""
    digits = text.removeprefix("-")
    value = 0
    for i in range(0, len(digits), PART_DIGITS):
        part = digits[i : i + PART_DIGITS]
        value = value * 10 ** len(part) + int(part)
    return -value if text.startswith("-") else value


def check_requires(requires: object, known: Collection[str], where: str) -> None:
    """Raise if a document asks its reader for something that this ckstore does not know."""
    if not isinstance(requires, list) or not all(isinstance(name, str) for name in requires):
        refuse(where, "requires", "an array of strings", requires)
    unknown = [name for name in requires if name not in known]
    if unknown:
        wanted = f"only {', '.join(known)}" if known else "nothing"
        msg = f"{where}: requires {shown(', '.join(unknown))}, and this ckstore knows {wanted}"
        raise NewerFormat(msg, hint="install a newer ckstore to read it")


def check_created(created: object, where: str) -> str:
    """Return `created`."""
    if not isinstance(created, str) or CREATED_PATTERN.match(created) is None:
        refuse(where, "created", "YYYY-MM-DDTHH:MM:SS.ffffffZ", created)
    try:
        datetime.fromisoformat(created)
    except ValueError:
        refuse(where, "created", "a time that exists", created)
    return created


def parse_object(data: bytes | memoryview, *, where: str) -> dict[str, Any]:
    """Return the JSON object in `data`: all integers are within ±2^53, all floats finite."""
    # Raises BadInput: it is not such an object, or nested deeper than `MAX_LEVELS` or than the interpreter can follow.
    # `translate` and `replace` below are of bytes, not of a view.
    data = bytes(data)
    # Before the parser: beyond the end of its stack the process dies, and no exception says so.
    if _is_deep(data):
        raise BadInput(f"{where}: wanted JSON of at most {MAX_LEVELS} levels, found it nested deeper")
    try:
        text = str(data, "ascii")
        # Hooks, not a walk afterwards: the scanner has thrown the second of two names away by then,
        # and int() of a million digits takes as long as an attacker likes. None is asked about short ones.
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer if _has_long_numbers(data) else None,
            parse_float=_float,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        found = f"byte {bytes(data[error.start : error.start + 1])!r} at {error.start}"
        raise BadInput(f"{where}: wanted JSON in ASCII, found {found}") from error
    except RecursionError as error:
        raise BadInput(f"{where}: wanted JSON, found it nested too deep") from error
    except ValueError as error:
        raise BadInput(f"{where}: wanted JSON, found: {error}") from error
    if not isinstance(value, dict):
        refuse(where, "the document", "a JSON object", value)
    return value


def parse_document(data: bytes, format: str, newest: int, where: str) -> dict[str, Any]:  # noqa: A002 - the member
    """Return the JSON object in `data`, which says that it is of that format, in a version up to `newest`."""
    members = parse_object(data, where=where)
    check_format(members, format, newest, where)
    return members


def check_format(members: Mapping[str, Any], format: str, newest: int, where: str) -> None:  # noqa: A002 - the member
    """Check what a document says that it is."""
    if members.get("format") != format:
        refuse(where, "format", repr(format), members.get("format"))
    version = members.get("version")
    # `type`, since True is an `int`, and `1 == True`.
    if type(version) is not int or version < 1:
        refuse(where, "version", "an integer from 1", version)
    # A newer writer may have given members another meaning: reading on would be guessing.
    if version > newest:
        raise NewerFormat(
            f"{where}: this ckstore reads versions up to {newest}, found version {version}",
            hint="install a newer ckstore",
        )


def parse_foreign(data: bytes) -> Any:
    """Return the JSON that another program wrote, with Python's own rules but for the length of its numbers."""
    # Only a document with long digits takes the slower hook. Python's own limit can be switched off.
    return json.loads(data, parse_int=_foreign_integer if _has_long_numbers(data) else None)


def _foreign_integer(digits: str) -> int:
    # `int()` takes time by the square of the digits, and Python's own limit can be switched off.
    if len(digits) > MAX_NUMBER_DIGITS:
        raise _Refused(f"a number of {len(digits)} digits")
    return int(digits)


def _has_long_numbers(data: bytes) -> bool:
    """Whether JSON may hold an integer that `_integer` has to look at; text in a string may look like one."""
    return _LONG in (b"," + data).translate(_KINDS)


def _is_deep(data: bytes) -> bool:
    """Whether JSON is nested deeper than `MAX_LEVELS`."""
    # The parser is recursive: how deep it may go is up to the interpreter and to the program that raised its limit, and
    # beyond the end of the stack the process dies.
    if rb"\"" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # pairs from the left; what is odd escapes what follows
    left = _outside_strings(data.translate(_ONE_KIND, _REST))
    for _ in range(_QUICK_LEVELS):  # the innermost pairs, which are most of them, all at once
        left = left.replace(b"[]", b"")
    most = max(accumulate(map(_STEPS.__getitem__, left)), default=0)
    return most + _QUICK_LEVELS > MAX_LEVELS


def _outside_strings(marks: bytes) -> bytes:
    """Return the brackets of `marks`, which holds brackets and quotes alone, that no two quotes enclose."""
    # By pieces: Python needs a hundred bytes for each that it splits off or joins, and an attacker may send millions.
    found, inside = [], False
    for at in range(0, len(marks), _PIECE_BYTES):
        parts = marks[at : at + _PIECE_BYTES].split(b'"')
        found.append(b"".join(parts[inside::2]))
        inside ^= len(parts) % 2 == 0
    return b"".join(found)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # JSON readers disagree about a name that is there twice: the first or the second could be what was sealed.
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Refused(f"the member {shown(name)} twice in one object")
            seen.add(name)
    return members


def _integer(digits: str) -> int:
    if len(digits) < _MAX_DIGITS:
        return int(digits)
    if len(digits) <= _MAX_DIGITS + 1:
        value = int(digits)
        if -SAFE_INT <= value <= SAFE_INT:
            return value
    raise _Refused(f"an integer outside ±2^53: {shown(digits)}")


def _float(digits: str) -> float:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise _Refused(f"a number of more than {MAX_NUMBER_DIGITS} digits: {shown(digits)}")
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused(f"a number that no float holds: {shown(digits)}")
    return value


def _constant(name: str) -> NoReturn:
    raise _Refused(f"{name}, which is not JSON")
