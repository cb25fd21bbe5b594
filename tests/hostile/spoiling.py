"""Spoil a JSON document in a way that is drawn: its bytes, its values, its structure."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

_DIGEST = "xxh3-" + "0" * 32
_NAMES = ("..", ".", "", "/", "../../outside", "../outside/new", "a/../../../outside", "/outside", "a\0b", "-", "con\n")
_TEXTS = (
    *_NAMES,
    "\ud800",
    "x" * 70_000,
    "é",
    "2",
    "NaN",
    "1e999",
    _DIGEST,
    _DIGEST.upper(),
    "blake3-" + "0" * 64,
    "$int",
)
_DTYPES = (
    "float32",
    "<f4",
    "|O",
    "O",
    "<U999999999999",
    "<U2147483648",
    "|V8",
    "<f3",
    "<M8[parsecs]",
    "|S0",
    "<c64",
    "",
)
_NUMBERS = (-1, 0, 1, 2, 63, 2**31, 2**53, 2**53 + 1, 2**62, 2**63, 2**64, -(2**53), -(2**63), 0.5, 1e308, -0.0)
_SHAPES: tuple[list[int], ...] = ([2**62, 2], [2**31, 2**31, 0], [0], [1] * 70, [-1], [2**40], [])
_DEEP = 100_000
_RAW = {
    "raw:huge": "1" + "0" * 5000,
    "raw:exponent": "1e99999",
    "raw:nan": "NaN",
    "raw:infinity": "-Infinity",
    "raw:deep lists": "[" * _DEEP + "]" * _DEEP,
    "raw:deep objects": '{"a":' * _DEEP + "1" + "}" * _DEEP,
    "raw:twice": '{"a":1,"a":2}',
    "raw:leading zero": "007",
    "raw:surrogate": '"\\ud800\\udc00\\ud800"',
    "raw:many": "[" + ",".join("0" * 20_000) + "]",
}
"""Texts that no JSON writer gives; their names stand for them until the document is written."""

Place = tuple[Any, Any]
"""A container and the key or index of a value in it."""


def spoiled_value(document: Any, draw: random.Random) -> str:
    """Return the text of a JSON document in which one to three things were changed."""
    document = json.loads(json.dumps(document))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = _places(document)
        if places:
            draw.choice(_CHANGES)(*draw.choice(places), draw)
    return _written(document, draw)


def spoiled_bytes(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes of a file of which some were changed, taken away or added."""
    how = draw.randrange(6)
    changed = bytearray(data)
    if how == 0:
        for _ in range(draw.choice((1, 1, 2, 20))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    elif how == 1:
        del changed[draw.randrange(len(changed)) :]
    elif how == 2:
        at = draw.randrange(len(changed) + 1)
        changed[at:at] = draw.randbytes(draw.choice((1, 7, 4096)))
    elif how == 3:
        changed += data
    elif how == 4:
        return draw.choice((b"", b"\0" * 100, b"\xef\xbb\xbf" + data, data.decode("latin-1").encode("utf-16"), b"null"))
    else:
        at = draw.randrange(len(changed))
        del changed[at : at + draw.choice((1, 10, 100))]
    return bytes(changed)


def _places(document: Any) -> list[Place]:
    found: list[Place] = []
    todo = [document]
    while todo:
        container = todo.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                todo.append(container[key])
    return found


def _replace(container: Any, key: Any, draw: random.Random) -> None:
    kinds: tuple[tuple[Any, ...], ...] = (_TEXTS, _DTYPES, _NUMBERS, _SHAPES, tuple(_RAW), (None, True, False, [], {}))
    value = draw.choice(draw.choice(kinds))
    container[key] = list(value) if isinstance(value, list) else value


def _other_type(container: Any, key: Any, draw: random.Random) -> None:
    value = container[key]
    if isinstance(value, str):
        container[key] = [value] if draw.random() < 0.5 else len(value)
    elif isinstance(value, dict):
        container[key] = list(value.items())
    elif isinstance(value, list):
        container[key] = {str(i): item for i, item in enumerate(value)} if draw.random() < 0.5 else json.dumps(value)
    else:
        container[key] = str(value) if draw.random() < 0.5 else [value]


def _near(container: Any, key: Any, draw: random.Random) -> None:
    """A number a little or a lot away; a digest, a name or a time of which one character is another."""
    value = container[key]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        _replace(container, key, draw)
    elif isinstance(value, str):
        at = draw.randrange(len(value) + 1)
        container[key] = value[:at] + draw.choice("0/\\.aZ\x7f\u0660") + value[at + 1 :]
    else:
        container[key] = draw.choice((value + 1, value - 1, -value, value * 2, value * 2**20, value + 0.5))


def _remove(container: Any, key: Any, draw: random.Random) -> None:
    del container[key]


def _again(container: Any, key: Any, draw: random.Random) -> None:
    if isinstance(container, list):
        container[key:key] = [container[key]] * draw.choice((1, 2, 100))
    else:
        container[f"raw twice {key}"] = container[key]


def _elsewhere(container: Any, key: Any, draw: random.Random) -> None:
    """Put the value of another place of the same container here."""
    keys = list(container) if isinstance(container, dict) else range(len(container))
    container[key] = container[draw.choice(list(keys))]


def _nested(container: Any, key: Any, draw: random.Random) -> None:
    value = container[key]
    for _ in range(draw.choice((1, 99, 101, 400))):
        value = draw.choice((["list", [value]], ["dict", [["k", value]]], [value], {"k": value}))
    container[key] = value


def _added(container: Any, key: Any, draw: random.Random) -> None:
    name = draw.choice((*_NAMES, "$float", "$int", "format", "run", "__proto__"))
    if isinstance(container, dict):
        container[name] = draw.choice((1, "nan", None, [], "raw:deep lists"))
    else:
        container.append(name)


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    *(_replace,) * 4,
    _other_type,
    *(_near,) * 3,
    _remove,
    _again,
    _elsewhere,
    _nested,
    _added,
)


def _written(document: Any, draw: random.Random) -> str:
    spaced = draw.random() < 0.2
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * limit)  # what is nested several times is deeper than this may write
    try:
        text = json.dumps(document, sort_keys=not spaced, separators=None if spaced else (",", ":"))
    finally:
        sys.setrecursionlimit(limit)
    for name, raw in _RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.replace('"raw twice ', '"')
