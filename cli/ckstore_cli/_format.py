"""Formatting of ages, tables and long lines for people. These are pure functions; the caller passes the time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

_MINUTE_S = 60
_HOUR_S = 60 * _MINUTE_S
_DAY_S = 24 * _HOUR_S


def age_text(created: str, now: datetime) -> str:
    """Return the age of a time in a manifest, such as ``42 s ago`` or ``3 min ago``, or the date after 60 days."""
    age_s = (now - datetime.fromisoformat(created)).total_seconds()
    if age_s < -_MINUTE_S:
        return "in the future"  # the clock of that machine or of this one is wrong
    for limit_s, unit_s, unit in (
        (_MINUTE_S, 1, "s"),
        (_HOUR_S, _MINUTE_S, "min"),
        (2 * _DAY_S, _HOUR_S, "h"),
        (60 * _DAY_S, _DAY_S, "days"),
    ):
        if age_s < limit_s:
            return f"{max(int(age_s // unit_s), 0)} {unit} ago"
    return created[:10]


def columns(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Return the rows as lines, with two spaces between columns."""
    # `align` has ``<`` or ``>`` for each column. A last column with ``<`` is not padded.
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if align.endswith("<"):
        widths[-1] = 0
    layout = "  ".join(f"{{:{side}{width}}}" for side, width in zip(align, widths, strict=True))
    return [layout.format(*row) for row in rows]


def columns_with_names(rows: Sequence[Sequence[str]], align: str, width: int | None) -> list[str]:
    """Return the rows as lines, as `columns` does. In lines wider than `width`, cut the last column in the middle."""
    lines = columns(rows, align)
    if width is None:
        return lines
    start = len(lines[0]) - len(rows[0][-1])
    return [cut(line[:start] + cut_in_middle(line[start:], max(width - start, 1)), width) for line in lines]


def wrap(words: Sequence[str], width: int) -> list[str]:
    """Return the words as lines of at most `width` characters. A longer word gets its own line."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def cut(text: str, width: int | None) -> str:
    """Return `text`, shortened with ``…`` to `width` characters. Without a width, return it unchanged."""
    if width is None or len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…"


def cut_in_middle(text: str, width: int) -> str:
    """Return `text`, shortened to `width` characters with ``…`` in the middle, since names often differ at the end."""
    if len(text) <= width:
        return text
    kept = max(width - 1, 0)
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
