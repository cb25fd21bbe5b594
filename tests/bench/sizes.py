"""Numbers of bytes as they are written on a command line."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def size(text: str) -> int:
    """Return a number of bytes: ``2GiB``, ``64M``, ``4096``.

    Raises:
        ValueError: It is not a size.
    """
    found = re.fullmatch(r"([0-9.]+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a size, such as 2GiB")
    return int(float(found[1]) * _UNITS[found[2]])
