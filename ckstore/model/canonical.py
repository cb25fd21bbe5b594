"""Canonical JSON and its numbers. Source: docs/format/v1.md.

This module imports little, because every command needs it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii

SAFE_INT = 2**53
# Python refuses more than 4,300 digits at once, to prevent conversions that take minutes.
PART_DIGITS = 4000
"""A number of digits below the limit of int() and str() (sys.set_int_max_str_digits)."""
MAX_INT_BITS = 100_000
"""The maximum number of bits of a saved integer. The time to convert digits to an integer grows quadratically."""
MAX_NUMBER_DIGITS = 30_103
"""The maximum number of characters of a number in a document, without the sign; enough for `MAX_INT_BITS` bits."""
TOO_LONG_INT = f"an integer of more than {MAX_INT_BITS:,} bits ({MAX_NUMBER_DIGITS:,} digits)"
LONG_INT_HINT = (
    'store value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True); '
    'int.from_bytes(data, "little", signed=True) restores it'
)
quoted = encode_basestring_ascii
"""Quote a string as in `canonical_text`. This is not a wrapper, because it is called for each leaf and extent."""
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def canonical_json(value: object) -> bytes:
    """Return `value` as JSON with sorted member names, without spaces, in ASCII."""
    return canonical_text(value).encode("ascii")


def canonical_text(value: object) -> str:
    """Return the text of `canonical_json` before it is encoded to bytes.

    A value has exactly one text. Digests cover the text, so the same value with spaces or in another order would have
    another digest.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def object_of(members: Mapping[str, str]) -> bytes:
    """Return the canonical JSON of an object whose members are already canonical texts."""
    return f"{{{','.join(f'{quoted(name)}:{members[name]}' for name in sorted(members))}}}".encode("ascii")


def encode_metric(value: float) -> int | float | str:
    """Return a metric for JSON; numbers that JSON lacks become ``"nan"``, ``"inf"`` or ``"-inf"``."""
    return value if math.isfinite(value) else str(value)


def fits_json(text: str) -> bool:
    """Return whether JSON preserves `text`.

    A JSON reader joins two surrogates that form a pair into one character.
    """
    return text.isascii() or _PAIR.search(text) is None


def is_storable_int(value: int) -> bool:
    """Return whether an integer is short enough for a document."""
    return value.bit_length() <= MAX_INT_BITS


def decimal_of_int(value: int) -> str:
    """Return the decimal text of an integer of any size, even if it has more digits than str() accepts."""
    if value < 0:
        return "-" + decimal_of_int(-value)
    parts = []
    part = 10**PART_DIGITS
    while value >= part:
        value, rest = divmod(value, part)
        parts.append(str(rest).rjust(PART_DIGITS, "0"))
    return str(value) + "".join(reversed(parts))
