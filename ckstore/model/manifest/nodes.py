"""Plain values as nodes of a state, and back. Source: docs/format/v1.md, "Nodes".

Containers, leaves and NumPy scalars are put together in `tensors`; here is what needs no library.
Decoding takes nodes that `model/manifest/sections` has checked.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from typing import TYPE_CHECKING

from ckstore.errors import DamagedBlob
from ckstore.model.canonical import SAFE_INT, decimal_of_int
from ckstore.model.document import int_of_decimal

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import LeafRecord, Node

SEQUENCES = ("list", "tuple", "deque")
"""Tags of nodes that hold nodes."""
DICTS = ("dict", "odict", "counter", "defaultdict")
PAIRS = (*DICTS, "parts")
"""Tags of nodes that hold pairs of a key and a node."""

_NUMBERS = {"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_NUMBERS |= {"f2": "e", "f4": "f", "f8": "d"}
_DOUBLE = struct.Struct(">d")
_BITS_PATTERN = re.compile(r"[0-9a-fA-F]{16}\Z")
_EXPONENT = 0x7FF


def encode_int(value: int) -> Node:
    """Return the node of an integer of any size."""
    if -SAFE_INT <= value <= SAFE_INT:
        return value
    return ["int", decimal_of_int(value)]


def encode_float(value: float) -> Node:
    """Return the node of a float. All 64 bits are kept: -0.0, infinities, the payload of a nan."""
    return ["float", _number(value)]


def encode_complex(value: complex) -> Node:
    """Return the node of a complex number, with all bits of both parts."""
    return ["complex", _number(value.real), _number(value.imag)]


def encode_bytes(value: bytes) -> Node:
    """Return the node of a few bytes; many are better kept as a leaf."""
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
    """Return the string that the bytes of a leaf are.

    Raises:
        DamagedBlob: They are none: their digest is right, and they were no string before.
    """
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        msg = f"{leaf.name} is not text: wanted UTF-8, found byte {data[error.start]:#04x} at {error.start}"
        raise DamagedBlob(msg, names=(leaf.name,)) from error


def numpy_number(dtype: str, data: bytes) -> float | None:
    """Return a NumPy scalar as a bool, an int or a float of Python, without NumPy; None if it is something else."""
    code = _NUMBERS.get(dtype[1:])
    if code is None:
        return None
    value: float = struct.unpack((">" if dtype[0] == ">" else "<") + code, data)[0]
    return value


def text_of_bytes(value: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(value).decode("ascii")


def bytes_of_text(text: str) -> bytes:
    """Return the bytes of base64."""
    return base64.b64decode(text, validate=True)


def is_float(x: object) -> bool:
    """Whether `x` is a number, or the bits of a float that is not finite."""
    if type(x) is str:
        return _BITS_PATTERN.match(x) is not None and int(x[:4], 16) >> 4 & _EXPONENT == _EXPONENT
    return type(x) is float or type(x) is int


def bytes_in(text: object) -> bytes | None:
    """Return the bytes of strict base64; None if it is none."""
    if type(text) is not str:
        return None
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError are both
        return None


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else _DOUBLE.pack(value).hex()


def decode_float(x: float | str) -> float:
    """Return the float that `x` of ``["float", x]`` stands for."""
    if isinstance(x, str):
        value: float = _DOUBLE.unpack(bytes.fromhex(x))[0]
        return value
    return float(x)
