"""The opcodes of a pickle with the bytes of their arguments; other modules know what they do.

pickletools.genops lists opcodes too, but decodes the argument of each, with a DeprecationWarning for some, and makes
an integer of however many digits. Source: pickletools.py of Python, whose table of opcodes is used.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator

from ckstore.containers.values import refuse

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
    """Yield the name of each opcode, the bytes of its argument and where that ends, up to STOP.

    Two lines are one argument.

    Raises:
        Refused: An opcode is unknown, or the end comes before STOP.
    """
    at = 0
    name = ""
    while name != "STOP":
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
    """Return where an argument starts and stops; beyond the end or before the start if it does not."""
    if nbytes >= 0:
        return at, at + nbytes
    width = _LENGTHS.get(nbytes)
    if width is not None:
        return at + width, at + width + int.from_bytes(data[at : at + width], "little")
    stop = data.find(b"\n", at)
    if name in _PAIRS and stop >= 0:
        stop = data.find(b"\n", stop + 1)
    return at, stop + 1


def text_of(arg: bytes) -> str:
    """Return the text of an argument.

    Raises:
        Refused: It is not UTF-8.
    """
    try:
        return str(arg, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        refuse("the pickle", "UTF-8", error)


def decimal_of(arg: bytes) -> int | None:
    """Return a number that is written in digits; None for what is none, as 00 and 01, once False and True."""
    digits = arg.rstrip(b"\n")
    return int(digits.rstrip(b"L")) if _DECIMAL_PATTERN.fullmatch(digits) else None
