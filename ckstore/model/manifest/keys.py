"""Keys of dicts and elements of sets: strings, integers, None, booleans, floats, and tuples of these.

Source: docs/format/v1.md, "Keys" and "Names". What is here neither imports nor calls anything of torch or NumPy.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ckstore.model.canonical import SAFE_INT, decimal_of_int, fits_json
from ckstore.model.document import int_of_decimal, is_big_decimal
from ckstore.model.manifest.nodes import decode_float, encode_float, encode_int, is_float
from ckstore.model.names import join_index, join_key

MAX_KEY_DEPTH = 8
"""So deep are tuples in a key nested."""
_ESCAPED = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]"})


def encode_key(key: object, depth: int = 1) -> Any:
    """Return the node of a key.

    Raises:
        ValueError: The format does not hold it; the message says why.
    """
    kind = type(key)
    if kind is str:
        if not fits_json(key):  # type: ignore[arg-type]
            raise ValueError("has two surrogates that JSON would join")
        return key
    if kind is int:
        return encode_int(key)  # type: ignore[arg-type]
    if key is None or kind is bool:
        return key
    if kind is float:
        if math.isnan(key):  # type: ignore[arg-type]
            raise ValueError("is no number, and is not found again")
        return encode_float(key)  # type: ignore[arg-type]
    if kind is tuple:
        if depth > MAX_KEY_DEPTH:
            raise ValueError(f"has tuples nested deeper than {MAX_KEY_DEPTH}")
        return ["tuple", [encode_key(part, depth + 1) for part in key]]  # type: ignore[attr-defined]
    raise ValueError("is of another type")


def decode_key(node: Any) -> Any:
    """Return the key that a node stands for, which `same_keys` has checked."""
    if not isinstance(node, list):
        return node
    if node[0] == "int":
        return int_of_decimal(node[1])
    if node[0] == "float":
        return decode_float(node[1])
    return tuple(map(decode_key, node[1]))


def identity_of(node: Any, depth: int = 1) -> Any:
    """Return what two keys have in common that are one in a dict, as 1, 1.0 and True; None: it is not a key.

    No great integer is made of its digits.
    """
    if type(node) is str:
        return (node,)
    if node is None:
        return ("None",)
    if type(node) is int or type(node) is bool:
        return int(node)
    if type(node) is not list or len(node) != 2:
        return None
    tag, held = node
    if tag == "int" and is_big_decimal(held):
        return "int", held
    if tag == "float" and is_float(held):
        return _identity_of_float(decode_float(held))
    if tag == "tuple" and type(held) is list and depth <= MAX_KEY_DEPTH:
        parts = tuple(identity_of(part, depth + 1) for part in held)
        return None if None in parts else ("tuple", parts)
    return None


def _identity_of_float(value: float) -> Any:
    if math.isnan(value):
        return None
    if not value.is_integer():
        return "float", value
    return int(value) if abs(value) <= SAFE_INT else ("int", decimal_of_int(int(value)))


def join(path: str, key: Any) -> str:
    """Return the name of the value at `key` of the dict named `path`."""
    kind = type(key)
    if kind is str:
        return join_key(path, key)
    if kind is int:
        return join_index(path, key)
    return f"{path}[{_text(key).translate(_ESCAPED)}]"


def _text(key: Any) -> str:
    if type(key) is tuple:
        inner = ", ".join(map(_text, key))
        return f"({inner},)" if len(key) == 1 else f"({inner})"
    if type(key) is str:
        return json.dumps(key)
    if type(key) is int:
        return decimal_of_int(key)
    return repr(key)  # of None, booleans and floats: the shortest digits that give the float back
