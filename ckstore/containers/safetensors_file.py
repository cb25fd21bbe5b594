"""Read the header of a safetensors file, with stricter checks than the safetensors library.

No tensor data is read. The library accepts every file that this module accepts, and reads it in the same way. The
library also accepts files with repeated or unnecessary members. The header is not parsed as general JSON. A tree of
lists, a number with a million digits or an array of a million sizes is refused at its beginning, so the cost of reading
a header is limited by its length. https://github.com/huggingface/safetensors defines the format in "Format".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from ckstore.containers.parsed_values import MAX_DIMENSIONS, MAX_TENSORS, RandomAccess, refuse
from ckstore.model.document import shown
from ckstore.model.manifest.dtypes import DTYPES
from ckstore.model.manifest.leaf_records import elements

MAX_HEADER_BYTES = 100_000_000  # the limit of the library

_LENGTH_BYTES = 8
DTYPE_BITS = {one.safetensors: one.bits for one in DTYPES if one.safetensors}  # all dtypes of safetensors 0.8

_SPACE = rb"[ \t\n\r]*"
# Numbers have at most 19 digits, because the time to convert a number grows with the square of its number of digits.
_NUMBER = rb"(?:0|[1-9][0-9]{0,18})" + _SPACE
_MARK_PATTERN = re.compile(_SPACE + rb"([{}:,])")
_QUOTE_PATTERN = re.compile(_SPACE + rb'"')
# At most a thousand repetitions are matched at a time, because the regex engine keeps memory for each repetition, so
# that it can backtrack.
_TEXT_PATTERN = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\[^\x00-\x1f]){1,1000}')
_SIZES_PATTERN = re.compile(
    _SPACE + rb"\[%b((?:%b(?:,%b%b){0,%d})?)\]" % (_SPACE, _NUMBER, _SPACE, _NUMBER, MAX_DIMENSIONS - 1)
)
_END_PATTERN = re.compile(_SPACE + rb"\Z")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One checked tensor of the header. Its data is in the bytes from `start` to `stop` of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def looks_like_safetensors(file: RandomAccess) -> bool:
    """Whether the file begins with a possible length and an opening brace, as the format requires."""
    if file.nbytes <= _LENGTH_BYTES:
        return False
    head = file.read(0, _LENGTH_BYTES + 1)
    # Only nine bytes are read, so that a file of another format costs one read.
    return head[_LENGTH_BYTES:] == b"{" and _header_bytes(head) <= min(MAX_HEADER_BYTES, file.nbytes - _LENGTH_BYTES)


def read_entries(file: RandomAccess) -> list[TensorEntry]:
    """Return the tensors of a file that looks like safetensors, in the order of their bytes.

    The tensors cover all bytes after the header.
    """
    length = _header_bytes(file.read(0, _LENGTH_BYTES))
    start = _LENGTH_BYTES + length
    entries = sorted(
        _Header(file.read(_LENGTH_BYTES, length)).entries(start), key=lambda entry: (entry.start, entry.stop)
    )
    for entry in entries:
        # A gap could hide bytes, and an overlap would give one byte to two tensors. The library also refuses both.
        if entry.start != start:
            refuse(f"data_offsets of {shown(entry.name)}", f"a start at byte {start} of the file", entry.start)
        start = entry.stop
    if start != file.nbytes:
        refuse("the last tensor", f"an end at the end of the file, byte {file.nbytes}", start)
    return entries


def _header_bytes(head: bytes) -> int:
    return int.from_bytes(head[:_LENGTH_BYTES], "little")


class _Header:
    """A reader of the header, in one pass."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._tensor: str | None = None

    def entries(self, data_start: int) -> Iterator[TensorEntry]:
        """Yield the tensors in the order of the header. Each tensor is checked, but not compared with the others."""
        for name in self._members():
            if name == "__metadata__":
                for _ in self._members():
                    self._string()
            else:
                self._tensor = name
                yield self._entry(name, data_start)
                self._tensor = None
        if _END_PATTERN.match(self._data, self._at) is None:
            self._refuse("spaces after the object")

    def _entry(self, name: str, data_start: int) -> TensorEntry:
        dtype = ""
        arrays: dict[str, tuple[int, ...]] = {}
        for key in self._members():
            if key == "dtype":
                dtype = self._string()
            elif key in ("shape", "data_offsets"):
                match = _SIZES_PATTERN.match(self._data, self._at)
                if match is None:
                    self._refuse(f"an array of at most {MAX_DIMENSIONS} sizes")
                self._at = match.end()
                arrays[key] = tuple(map(int, match[1].split(b","))) if match[1] else ()
            else:
                self._refuse("the members dtype, shape and data_offsets", shown(key))
        shape, offsets = arrays.get("shape"), arrays.get("data_offsets")
        if not dtype or shape is None or offsets is None:
            self._refuse("the members dtype, shape and data_offsets", "only some of them")
        bits = DTYPE_BITS.get(dtype)
        if bits is None:
            self._refuse("a dtype of safetensors 0.8", shown(dtype))
        count = elements(shape)
        # Bits are compared, because an element of F4 or F6 is not a whole number of bytes.
        if count is None or len(offsets) != 2 or count * bits != 8 * (offsets[1] - offsets[0]):
            self._refuse(f"start and end of {shown(shape)} times {dtype}", f"data_offsets {shown(offsets)}")
        return TensorEntry(name, dtype, shape, data_start + offsets[0], data_start + offsets[1])

    def _members(self) -> Iterator[str]:
        """Yield the names in an object. The caller must read the value of a name before it requests the next name."""
        self._expect(b"{")
        names: set[str] = set()
        if self._next_is(b"}"):
            return
        while True:
            name = self._string()
            # Parsers differ in which of two members with one name they use, so two programs could read two models.
            if name in names:
                self._refuse("each name once", f"{shown(name)} twice")
            names.add(name)
            # A header of 100 MB has room for millions of names, which would take gigabytes of memory.
            if len(names) > MAX_TENSORS:
                self._refuse(f"at most {MAX_TENSORS} names", "more")
            self._expect(b":")
            yield name
            if self._next_is(b"}"):
                return
            self._expect(b",")

    def _next_is(self, mark: bytes) -> bool:
        match = _MARK_PATTERN.match(self._data, self._at)
        if match is None or match[1] != mark:
            return False
        self._at = match.end()
        return True

    def _expect(self, mark: bytes) -> None:
        if not self._next_is(mark):
            self._refuse(mark.decode())

    def _string(self) -> str:
        quote = _QUOTE_PATTERN.match(self._data, self._at)
        if quote is None:
            self._refuse("a string")
        end = quote.end()
        while (text := _TEXT_PATTERN.match(self._data, end)) is not None:
            end = text.end()
        if self._data[end : end + 1] != b'"':
            self._refuse("a string with an end")
        try:
            value = str(self._data[quote.end() : end], "utf-8")
            if "\\" in value:
                value = str(json.loads(f'"{value}"'))
                value.encode()  # json.loads accepts half of a surrogate pair
        except ValueError:
            self._refuse("a string in UTF-8")
        self._at = end + 1
        return value

    def _refuse(self, wanted: str, found: str = "") -> NoReturn:
        part = "the header" if self._tensor is None else f"the header of {shown(self._tensor)}"
        here = f"{self._data[self._at : self._at + 20]!r} at byte {_LENGTH_BYTES + self._at}"
        refuse(part, wanted, found or here)
