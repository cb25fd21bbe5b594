"""Canonical JSON and the numbers it holds. Source: docs/format/v1.md. Imports little, since every command needs it."""

from __future__ import annotations

import json
import math
import re

SAFE_INT = 2**53
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def canonical_json(value: object) -> bytes:
    """Return `value` as JSON with sorted member names, without spaces, in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def encode_metric(value: float) -> int | float | str:
    """Return a metric as JSON holds it: numbers that JSON lacks become ``"nan"``, ``"inf"`` or ``"-inf"``."""
    return value if math.isfinite(value) else str(value)


def fits_json(text: str) -> bool:
    r"""Whether `text` comes back from JSON as it was.

    Two surrogates that would be a pair do not: ``"\ud83d" + "\ude00"`` comes back as one character.
    """
    return text.isascii() or _PAIR.search(text) is None
