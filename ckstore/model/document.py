"""Common rules of all JSON documents of a store: strict JSON, a version, and times.

Strict JSON is ASCII. It has no repeated name in an object, and no number that JSON readers interpret differently.
The module of each document checks the remaining content, for example `model/manifest/parse` for a manifest.
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
_LONG_NEGATIVE = b",-" + b"0" * _MAX_DIGITS
_BEFORE_NUMBER = b"[,: \t\r\n"
_KINDS = bytes(
    ord("0" if b in b"0123456789" else "," if b in _BEFORE_NUMBER else "-" if b == ord("-") else "x")
    for b in range(256)
)
"""The kind of each byte.

``0`` is a digit, ``,`` a byte that may precede a number, ``-`` a minus sign, and ``x`` any other byte.
"""
_BIG_PATTERN = re.compile(r"-?[1-9][0-9]{15,}\Z")
CREATED_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z\Z")


# The limit is far below the depth at which Python's C parser overflows its stack and the process dies.
MAX_LEVELS = 500
"""The maximum number of nested levels of a document."""
# Each level of a state takes three levels of JSON, so the document that contains the state remains below `MAX_LEVELS`.
MAX_DEPTH = 100
"""The maximum number of nested levels of a state."""
_REST = bytes(set(range(256)) - set(b'[]{}"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STEPS = {ord("["): 1, ord("]"): -1}
_QUICK_LEVELS = 8
# `split` needs about 100 bytes of memory for each quote. Splitting 512 MiB of quotes at once would exhaust the memory.
_PIECE_BYTES = 2**18


class _Refused(ValueError):
    """An error in the parser's hooks, where the name of the document is unknown."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value: object) -> str:
    """Return the text of `value` for a message, shortened to one line."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer with more digits than str() accepts
        return f"{type(value).__name__} with thousands of digits"


def refuse(where: str, what: str, wanted: str, found: object, *, words: bool = False) -> NoReturn:
    """Raise the error for content that does not conform to the format.

    Args:
        where: The name of the document.
        what: The part of the document.
        wanted: The expected content.
        found: The value, or a text about the value.
        words: Whether `found` is such a text.
    """
    raise BadInput(f"{where}: {what}: wanted {wanted}, found {found if words else shown(found)}")


def is_big_decimal(text: object) -> bool:
    """Return whether `text` is an integer outside ±2^53 in the decimal form of `decimal_of_int`."""
    if not isinstance(text, str) or len(text) > MAX_NUMBER_DIGITS + 1 or _BIG_PATTERN.match(text) is None:
        return False
    return len(text) > _MAX_DIGITS + 1 or abs(int(text)) > SAFE_INT


def int_of_decimal(text: str) -> int:
    """Return the integer for a decimal text that `decimal_of_int` wrote or `is_big_decimal` accepted."""
    digits = text.removeprefix("-")
    value = 0
    for i in range(0, len(digits), PART_DIGITS):
        part = digits[i : i + PART_DIGITS]
        value = value * 10 ** len(part) + int(part)
    return -value if text.startswith("-") else value


def check_requires(requires: object, known: Collection[str], where: str) -> None:
    """Raise an error if a document requires a feature that this ckstore does not support."""
    if not isinstance(requires, list) or not all(isinstance(name, str) for name in requires):
        refuse(where, "requires", "an array of strings", requires)
    unknown = [name for name in requires if name not in known]
    if unknown:
        wanted = f"only {', '.join(known)}" if known else "nothing"
        msg = f"{where}: requires {shown(', '.join(unknown))}, and this ckstore knows {wanted}"
        raise NewerFormat(msg, hint="install a newer ckstore to read it")


def check_created(created: object, where: str) -> str:
    """Return `created` if it is a valid time, otherwise raise an error."""
    if not isinstance(created, str) or CREATED_PATTERN.match(created) is None:
        refuse(where, "created", "YYYY-MM-DDTHH:MM:SS.ffffffZ", created)
    try:
        datetime.fromisoformat(created)
    except ValueError:
        refuse(where, "created", "a time that exists", created)
    return created


def parse_object(data: bytes | memoryview, *, where: str) -> dict[str, Any]:
    """Return the JSON object in `data`, with all integers within ±2^53 and all floats finite.

    Raises:
        BadInput: The data is not such an object, or its nesting exceeds `MAX_LEVELS` or the limit of the interpreter.
    """
    # A memoryview has no `translate` or `replace`, which are used below.
    data = bytes(data)
    # Check the depth first. If the parser overflowed its stack, the process would die without an exception.
    if _is_deep(data):
        raise BadInput(f"{where}: wanted JSON of at most {MAX_LEVELS} levels, found it nested deeper")
    try:
        text = str(data, "ascii")
        # Use hooks instead of a later traversal, because the scanner drops one of two equal names, and int() of
        # millions of digits takes very long. The hook for integers is set only if there may be long integers.
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
    """Return the JSON object in `data` after checking its format and that its version is at most `newest`."""
    members = parse_object(data, where=where)
    check_format(members, format, newest, where)
    return members


def check_format(members: Mapping[str, Any], format: str, newest: int, where: str) -> None:  # noqa: A002 - the member
    """Check the format and the version of a document."""
    if members.get("format") != format:
        refuse(where, "format", repr(format), members.get("format"))
    version = members.get("version")
    # `isinstance` would accept True, which is an `int` and equal to 1.
    if type(version) is not int or version < 1:
        refuse(where, "version", "an integer from 1", version)
    # In a newer version, members may have another meaning, so do not guess.
    if version > newest:
        raise NewerFormat(
            f"{where}: this ckstore reads versions up to {newest}, found version {version}",
            hint="install a newer ckstore",
        )


def parse_foreign(data: bytes) -> Any:
    """Return the value of JSON from another program, using Python's rules and a limit for the length of integers.

    The hook that checks this limit is slow, so it is used only for a document with long numbers.
    """
    return json.loads(data, parse_int=_foreign_integer if _has_long_numbers(data) else None)


def _foreign_integer(digits: str) -> int:
    # The time of `int()` grows with the square of the number of digits, and Python's own limit can be switched off.
    if len(digits) > MAX_NUMBER_DIGITS:
        raise _Refused(f"a number of {len(digits)} digits")
    return int(digits)


def _has_long_numbers(data: bytes) -> bool:
    """Return whether JSON may have an integer that `_integer` must check, or a string that contains such digits."""
    # A digest such as "xxh3-3448…" may begin with as many digits, but no byte that may precede a number is before its
    # minus sign.
    kinds = (b"," + data).translate(_KINDS)
    return _LONG in kinds or _LONG_NEGATIVE in kinds


def _is_deep(data: bytes) -> bool:
    """Return whether JSON is nested deeper than `MAX_LEVELS`.

    The parser is recursive. Its depth limit depends on the interpreter, and a program may have raised it. If the stack
    overflows, the process dies.
    """
    if rb"\"" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # remove escaped backslashes first
    left = _outside_strings(data.translate(_ONE_KIND, _REST))
    for _ in range(_QUICK_LEVELS):  # each pass removes all innermost pairs, which are most pairs
        left = left.replace(b"[]", b"")
    most = max(accumulate(map(_STEPS.__getitem__, left)), default=0)
    return most + _QUICK_LEVELS > MAX_LEVELS


def _outside_strings(marks: bytes) -> bytes:
    """Return the brackets outside strings in `marks`, which has only brackets and quotes.

    The marks are split piece by piece, because Python needs about 100 bytes for each part, and an attacker may send
    millions of quotes.
    """
    found, inside = [], False
    for at in range(0, len(marks), _PIECE_BYTES):
        parts = marks[at : at + _PIECE_BYTES].split(b'"')
        found.append(b"".join(parts[inside::2]))
        inside ^= len(parts) % 2 == 0
    return b"".join(found)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Refuse a repeated name. JSON readers disagree on whether its first or its last value counts.
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
