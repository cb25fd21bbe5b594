"""Plain values as nodes of a state, and back. Source: docs/format/v1.md, "Nodes".

Containers, leaves and NumPy scalars are put together in `tensors`; here is what needs no library.
Decoding takes nodes that `model/manifest/sections` has checked.
"""

from __future__ import annotations

import base64
import math
import struct
from typing import TYPE_CHECKING

from ckstore.errors import DamagedBlob
from ckstore.model.canonical import SAFE_INT, decimal_of_int
from ckstore.model.document import int_of_decimal

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import LeafRecord, Node

_DOUBLE = struct.Struct(">d")


def encode_int(value: int) -> Node:
    """Return the node of an integer of any size; it is also the node of an integer key."""
    if -SAFE_INT <= value <= SAFE_INT:
        return value
    return ["int", decimal_of_int(value)]


def decode_key(node: Node) -> str | int:
    """Return the key of a dict that `node` stands for: a string, an integer or ``["int", …]``."""
    if isinstance(node, list):
        return int_of_decimal(node[1])
    key: str | int = node
    return key


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
        return _float(node[1])
    if tag == "complex":
        return complex(_float(node[1]), _float(node[2]))
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


def text_of_bytes(value: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(value).decode("ascii")


def bytes_of_text(text: str) -> bytes:
    """Return the bytes of base64."""
    return base64.b64decode(text, validate=True)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else _DOUBLE.pack(value).hex()


def _float(x: float | str) -> float:
    if isinstance(x, str):
        value: float = _DOUBLE.unpack(bytes.fromhex(x))[0]
        return value
    return float(x)
