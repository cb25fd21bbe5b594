"""The opcodes of a pickle, and descriptions of its values other than plain Python values.

The described values are never created. This module uses the table of opcodes in Python's pickletools, but not
pickletools.genops. That function decodes all arguments, some of them with a DeprecationWarning, and creates integers of
any number of digits.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ckstore.containers.parsed_values import refuse
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.leaf_records import MAX_SIZE, elements

KEY_ELEMENTS_MOST = 64  # maximum total number of values in a tuple that is a key, including nested tuples
NAME_CHARS_SHOWN = 200
_HASHED = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True, slots=True, repr=False)
class Unknown:
    """A value that this package cannot read, with a description or the full name of its class or function."""

    description: str

    def __repr__(self) -> str:
        return self.description[:NAME_CHARS_SHOWN]


@dataclass(frozen=True, slots=True)
class Global:
    """A name that unpickling would import. `str` truncates it, since a pickle may repeat a long name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module[:NAME_CHARS_SHOWN]}.{self.name[:NAME_CHARS_SHOWN]}"


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage as the pickle describes it."""

    dtype: str | None  # None if the storage is untyped
    key: str
    count: int = 0  # number of elements, or number of bytes if the storage is untyped
    first: int = 0  # offset of this part of the storage, in elements; only files from before torch 1.6 have parts

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return 1 if self.dtype is None else TORCH_ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor as the pickle describes it. The description has not been compared with the storage."""

    key: str  # name of the record of its storage, below ``data/``
    dtype: str  # a torch dtype of `model/manifest/leaf_records`
    offset: int  # offset of its first element in the storage, in elements
    # `shape` and `strides` are those of torch. They have the same length and no negative numbers.
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: Storage | None = None  # its storage as the pickle describes it, or None
    kind: str = ""  # full name of its class; empty for a tensor or parameter of torch

    def reach_bytes(self) -> int | None:
        """Return the number of bytes from the start of the storage to the end of the last element.

        Return 0 for a tensor without elements, and None if no manifest can contain the tensor.
        """
        count = elements(self.shape)
        if count is None or max(self.strides, default=0) > MAX_SIZE:
            return None
        if count == 0:
            return 0
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * TORCH_ITEMSIZE[self.dtype]

    @property
    def is_row_major(self) -> bool:
        """Whether its elements are contiguous in row-major order."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """A sparse tensor: ``sparse_coo`` or ``sparse_csr``, its parts by name, its shape, and whether it is coalesced."""

    layout: str
    parts: dict[str, TensorView]
    shape: tuple[int, ...]
    is_coalesced: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PlainNode:
    """A value of torch or NumPy without a tensor, as a node of a state."""

    node: list[Any]


@dataclass(slots=True, eq=False)
class NumpyDtype:
    """A dtype of NumPy, such as ``f4``. Its state sets the byte order, and the unit of times."""

    code: str
    order: str = "<"
    unit: str = ""
    unknown: str = ""

    @property
    def text(self) -> str:
        """The dtype as NumPy writes it, such as ``<f4``."""
        return f"{'|' if self.code in ('b1', 'i1', 'u1') or self.code[:1] == 'S' else self.order}{self.code}{self.unit}"


@dataclass(slots=True, eq=False)
class NumpyArray:
    """An array of NumPy, without a dtype until its state is read."""

    dtype: NumpyDtype | None = None
    shape: tuple[int, ...] = ()
    is_fortran: bool = False
    data: bytes = field(default=b"", repr=False)
    unknown: str = ""


@dataclass(slots=True, eq=False)
class PlainObject:
    """An object that consists of its attributes, with the full name of its class. Its state sets the attributes."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


def name_of(value: Any) -> str:
    """Return a description of `value` for messages, without its content."""
    if type(value) is Unknown:
        return value.description
    if type(value) is Global:
        return str(value)
    if type(value) is PlainObject:
        return value.kind
    if type(value) in (TensorView, Sparse):
        return "a tensor"
    return f"a {type(value).__name__}"


def as_key(value: Any) -> Any:
    """Return `value` if it can be a key, otherwise an `Unknown`. Hashing a deeply nested value could crash."""
    if type(value) in _HASHED:
        return value
    if type(value) is tuple and _is_flat(value):
        return value
    return Unknown(name_of(value))


def _is_flat(value: tuple[Any, ...]) -> bool:
    # A stack is used, because Python's own hash would crash on a tuple that is nested a million levels deep.
    left = KEY_ELEMENTS_MOST
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if type(item) is tuple:
            left -= len(item)
            if left < 0:
                return False
            stack += item
        elif type(item) not in _HASHED:
            return False
    return True


def is_odd_key(value: Any) -> bool:
    """Whether an attacker could choose many keys of this type with the same hash."""
    return type(value) not in (str, bytes) and not (type(value) is int and -(2**63) <= value < 2**64)


_CODES = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_PAIRS = {"GLOBAL", "INST"}
_DECIMAL_PATTERN = re.compile(rb"-?(?:0|[1-9][0-9]{0,18})L?")


def opcodes(data: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Yield the name of each opcode up to STOP, the bytes of its argument, and the end of the argument.

    Two lines of text count as one argument.
    """
    at = 0
    name = ""
    while name != "STOP":
        # Unlike in pickletools.genops, no argument is decoded, because a number of a million digits would take minutes.
        opcode = _CODES.get(data[at]) if at < len(data) else None
        if opcode is None:
            refuse("the pickle", "an opcode", f"{data[at : at + 1]!r} at byte {at}")
        name, start = opcode.name, at + 1
        at = start
        if opcode.arg is not None:
            start, at = _argument(data, start, name, opcode.arg.n)
        if not start <= at <= len(data):
            refuse("the pickle", f"the argument of {name}", "the end")
        yield name, data[start:at], at


def _argument(data: bytes, at: int, name: str, nbytes: int) -> tuple[int, int]:
    """Return the start and the end of an argument. If the argument is truncated, the end is out of range."""
    if nbytes >= 0:
        return at, at + nbytes
    width = _LENGTHS.get(nbytes)
    if width is not None:
        return at + width, at + width + int.from_bytes(data[at : at + width], "little")
    # The argument of an opcode of protocol 0 ends at the end of its line. GLOBAL and INST have two lines.
    stop = data.find(b"\n", at)
    if name in _PAIRS and stop >= 0:
        stop = data.find(b"\n", stop + 1)
    return at, stop + 1


def text_of(arg: bytes) -> str:
    """Return the text of an argument."""
    try:
        return str(arg, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        refuse("the pickle", "UTF-8", error)


def decimal_of(arg: bytes) -> int | None:
    """Return a number written in digits, or None for other texts, such as 00 and 01 for False and True."""
    digits = arg.rstrip(b"\n")
    return int(digits.rstrip(b"L")) if _DECIMAL_PATTERN.fullmatch(digits) else None
