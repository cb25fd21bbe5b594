"""Encode plain values as nodes of a state, and decode these nodes. Source: docs/format/v1.md, "Nodes".

This module handles values that need no library. `tensors` assembles containers, leaves and NumPy scalars. Decoding
requires nodes that `model/manifest/parse` has checked.

Keys of dicts and elements of sets ("Keys" and "Names" in the source) are strings, integers, None, booleans, floats, and
tuples of these.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from typing import Any

from ckstore.errors import DamagedBlob
from ckstore.model.canonical import (
    LONG_INT_HINT,
    MAX_NUMBER_DIGITS,
    SAFE_INT,
    TOO_LONG_INT,
    decimal_of_int,
    fits_json,
    is_storable_int,
)
from ckstore.model.document import int_of_decimal, is_big_decimal
from ckstore.model.manifest.manifest import LeafRecord, Node
from ckstore.model.names import join_index, join_key

SEQUENCES = ("list", "tuple", "deque")  # tags of nodes that contain a list of nodes
DICTS = ("dict", "odict", "counter", "defaultdict")
PAIRS = (*DICTS, "parts", "object")  # tags of nodes that contain pairs of a key and a node
SPARSE_KINDS = ("sparse_coo", "sparse_csr")  # kinds of `parts` that are not names of classes

_NUMBERS = {"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_NUMBERS |= {"f2": "e", "f4": "f", "f8": "d"}
_DOUBLE = struct.Struct(">d")
_BITS_PATTERN = re.compile(r"[0-9a-fA-F]{16}\Z")
_EXPONENT = 0x7FF


class NotStored(ValueError):
    """A value of a supported type that the format cannot store.

    The message has the reason, and `hint` has the remedy.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def encode_int(value: int) -> Node:
    """Return the node of an integer, or raise NotStored if the integer is too long to be read in bounded time."""
    if -SAFE_INT <= value <= SAFE_INT:
        return value
    if not is_storable_int(value):
        raise NotStored(TOO_LONG_INT, LONG_INT_HINT)
    return ["int", decimal_of_int(value)]


def encode_float(value: float) -> Node:
    """Return the node of a float, which preserves all 64 bits, including the sign of -0.0 and the payload of a NaN."""
    return ["float", _number(value)]


def encode_complex(value: complex) -> Node:
    """Return the node of a complex number, with all bits of both parts."""
    return ["complex", _number(value.real), _number(value.imag)]


def encode_bytes(value: bytes) -> Node:
    """Return the node of a few bytes; more bytes should be stored as a leaf."""
    return ["bytes", text_of_bytes(value)]


def decode_scalar(node: Node) -> object:
    """Return the value of a node that is neither a container nor a leaf nor a NumPy scalar."""
    if not isinstance(node, list):
        return node
    tag = node[0]
    if tag == "int":
        return int_of_decimal(node[1])
    if tag == "float":
        return decode_float(node[1])
    if tag == "complex":
        return complex(decode_float(node[1]), decode_float(node[2]))
    if tag == "bytes":
        return bytes_of_text(node[1])
    raise ValueError(f"wanted the node of a plain value, found {tag!r}")


def text_of_leaf(leaf: LeafRecord, data: bytes) -> str:
    """Return the string in the bytes of a leaf.

    Raises:
        DamagedBlob: The bytes are not UTF-8. Since they match their digest, they never were a string.
    """
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        msg = f"{leaf.name} is not text: wanted UTF-8, found byte {data[error.start]:#04x} at {error.start}"
        raise DamagedBlob(msg, names=(leaf.name,)) from error


def numpy_number(dtype: str, data: bytes) -> float | None:
    """Return a NumPy scalar as a Python bool, int or float, without NumPy, or None for other scalars."""
    code = _NUMBERS.get(dtype[1:])
    if code is None:
        return None
    value: float = struct.unpack((">" if dtype[0] == ">" else "<") + code, data)[0]
    return value


def text_of_bytes(value: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(value).decode("ascii")


def bytes_of_text(text: str) -> bytes:
    """Return the bytes in a base64 text."""
    # Decode strictly, because ignored characters would give two texts for the same bytes.
    return base64.b64decode(text, validate=True)


def is_float(x: object) -> bool:
    """Return whether `x` is a number, or the bits of a float that is not finite."""
    if type(x) is str:
        return _BITS_PATTERN.match(x) is not None and int(x[:4], 16) >> 4 & _EXPONENT == _EXPONENT
    return type(x) is float or type(x) is int


def bytes_in(text: object) -> bytes | None:
    """Return the bytes in a strict base64 text, or None for another text."""
    if type(text) is not str:
        return None
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:  # base class of binascii.Error and UnicodeEncodeError
        return None


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else _DOUBLE.pack(value).hex()


def decode_float(x: float | str) -> float:
    """Return the float that `x` of ``["float", x]`` stands for."""
    if isinstance(x, str):
        value: float = _DOUBLE.unpack(bytes.fromhex(x))[0]
        return value
    return float(x)


# Python hashes and compares nested tuples recursively in C, without a limit on the depth.
MAX_KEY_DEPTH = 8  # maximum number of levels of nested tuples in a key
_ESCAPED = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]"})


def encode_key(key: object, depth: int = 1) -> Any:
    """Return the node of a key, or raise ValueError with the reason if the format cannot store the key."""
    kind = type(key)
    if kind is str:
        if not (key.isascii() or fits_json(key)):  # type: ignore[attr-defined,arg-type]
            raise ValueError("has two surrogates that JSON would join")
        return key
    if kind is int:
        if not is_storable_int(key):  # type: ignore[arg-type]
            raise ValueError(f"has more than {MAX_NUMBER_DIGITS:,} digits")
        return encode_int(key)  # type: ignore[arg-type]
    if key is None or kind is bool:
        return key
    if kind is float:
        # NaN is not equal to itself, so the value could never be looked up.
        if math.isnan(key):  # type: ignore[arg-type]
            raise ValueError("is not a number, and could not be looked up")
        return encode_float(key)  # type: ignore[arg-type]
    if kind is tuple:
        if depth > MAX_KEY_DEPTH:
            raise ValueError(f"has tuples nested deeper than {MAX_KEY_DEPTH}")
        return ["tuple", [encode_key(part, depth + 1) for part in key]]  # type: ignore[attr-defined]
    raise ValueError("is of another type")


def decode_key(node: Any) -> Any:
    """Return the key that a node represents; the node must have been checked with `identity_of`."""
    if not isinstance(node, list):
        return node
    if node[0] == "int":
        return int_of_decimal(node[1])
    if node[0] == "float":
        return decode_float(node[1])
    return tuple(map(decode_key, node[1]))


def identity_of(node: Any, depth: int = 1) -> Any:
    """Return a value that is equal for keys that are equal in a dict, such as 1, 1.0 and True.

    Return None if `node` is not a valid key. Large integers are compared as text, without converting their digits.
    """
    if type(node) is str:
        return (node,)
    if node is None:
        return ("None",)
    # 1, 1.0 and True are the same key in a dict, so a manifest may have only one of them.
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
    return repr(key)  # for None, a boolean or a float; repr() gives the shortest digits that represent the same float
