"""Everything that a result holds, as text to compare: its own `repr` is cut to a screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def in_full(value: Any) -> str:
    """Return a value with all its fields and items, as `repr` has those of plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        members = (f"{one.name}={in_full(getattr(value, one.name))}" for one in fields(value) if one.repr)
        return f"{type(value).__qualname__}({', '.join(members)})"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(in_full, value))})"
    if isinstance(value, Mapping):
        return f"{type(value).__name__}({', '.join(f'{in_full(key)}: {in_full(item)}' for key, item in value.items())})"
    return repr(value)
