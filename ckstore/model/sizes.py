"""Parse and write sizes such as ``32MiB`` and ``5GB``, and define which storages share packs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Real

from ckstore.errors import BadInput

SMALL_BELOW_BYTES = 2**20
"""Size below which storages always share packs."""
MEDIUM_BELOW_BYTES = 16 * 2**20
"""Size below which storages share packs if a state has many storages of medium size."""
_MANY = 16
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FACTORS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    name: 1024 ** (power + 1) for power, unit in enumerate(_UNITS[:4]) for name in (unit.upper(), unit[0])
}
_WRITTEN = ("TB", "TiB", "GB", "GiB", "MB", "MiB", "KB", "KiB", "B")
# The number of digits is limited, because Python rejects thousands of digits with an error that users do not expect.
_SIZE = r"([0-9]{1,30}(?:\.[0-9]{1,30})?) ?([A-Za-z]*)"


def medium_count(sizes: Iterable[int]) -> int:
    """Return how many sizes are medium: at least `SMALL_BELOW_BYTES` and below `MEDIUM_BELOW_BYTES`."""
    return sum(SMALL_BELOW_BYTES <= nbytes < MEDIUM_BELOW_BYTES for nbytes in sizes)


def pack_below_bytes(medium: int, chunk_bytes: int) -> int:
    """Return the size below which storages share packs; `medium` is the number of storages of medium size.

    Each file costs an fsync, two links and some 20 system calls. Therefore, many storages of medium size share packs. A
    few of them do not, so that the blob of each can be freed separately (docs/adr/0037-medium-tensors.md). Storages of
    at least the returned size are cut into chunks, which are deduplicated one by one.
    """
    return max(SMALL_BELOW_BYTES, min(MEDIUM_BELOW_BYTES, chunk_bytes)) if medium >= _MANY else SMALL_BELOW_BYTES


def is_number(value: object) -> bool:
    """Return whether `value` is a real number, also of NumPy."""
    return isinstance(value, Real)


def parse_size(text: str) -> int:
    """Return the number of bytes in a text: ``32MiB``, ``32M`` (the same), ``32 MB`` (32 million) or ``33554432``.

    Raises:
        BadInput: The text is not a number with a known unit, or not a whole number of bytes.
    """
    match = re.fullmatch(_SIZE, text.strip())
    factor: int | None = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise BadInput(f"a size is a number and a unit such as 32MiB, 512KiB or 1GiB, got {text!r}")
    whole, _, fraction = match[1].partition(".")
    scale: int = 10 ** len(fraction)
    scaled: int = int(whole + fraction) * factor
    nbytes, rest = divmod(scaled, scale)
    if rest:
        raise BadInput(f"a size is a whole number of bytes, got {text!r}")
    return nbytes


def exact_size(nbytes: int) -> str:
    """Return the shortest text of a size for `parse_size`, such as ``2TB``, ``1.5GiB`` or ``1000001B``."""
    found = []
    for unit in _WRITTEN:
        tenths, rest = divmod(nbytes * 10, _FACTORS[unit.upper()])
        if not rest and (tenths >= 10 or unit == "B"):
            found.append(f"{tenths // 10}{f'.{tenths % 10}' if tenths % 10 else ''}{unit}")
    return min(found, key=len)


def size_text(nbytes: float) -> str:
    """Return a size with one decimal and powers of 1024, such as ``512 B``, ``1.0 KiB`` or ``37.4 MiB``."""
    if nbytes < 1024:
        return f"{int(nbytes)} B"
    value, power = nbytes / 1024, 0
    while value >= 1023.95 and power < len(_UNITS) - 1:  # otherwise the text would be 1024.0
        value, power = value / 1024, power + 1
    return f"{value:.1f} {_UNITS[power]}"


def sizes_apart(first: int, second: int) -> tuple[str, str]:
    """Return two sizes as different texts, in bytes if `size_text` returns equal texts."""
    texts = size_text(first), size_text(second)
    return texts if texts[0] != texts[1] else (f"{first} B", f"{second} B")


def needed_and_free(needed_bytes: int, free_bytes: int) -> str:
    """Return a text with a needed size and the free size, such as ``3.8 MiB, 336.0 KiB are free``."""
    return "{}, {} are free".format(*sizes_apart(needed_bytes, free_bytes))
