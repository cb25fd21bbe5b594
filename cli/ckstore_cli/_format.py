"""Values as people read them: sizes, ages, metrics, columns. Pure functions; the clock is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

_MINUTE_S = 60
_HOUR_S = 60 * _MINUTE_S
_DAY_S = 24 * _HOUR_S


def age_text(created: str, now: datetime) -> str:
    """Return how long ago a time of a manifest was: ``42 s ago``, ``3 min ago``, else the day."""
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
    """Return the rows as lines with two spaces between columns."""
    # `align`: ``<`` or ``>`` for each column; the last one is not padded when it is ``<``.
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if align.endswith("<"):
        widths[-1] = 0
    layout = "  ".join(f"{{:{side}{width}}}" for side, width in zip(align, widths, strict=True))
    return [layout.format(*row) for row in rows]


def columns_with_names(rows: Sequence[Sequence[str]], align: str, width: int | None) -> list[str]:
    """As `columns`, with names in the last column: in lines wider than `width` these are cut in their middle."""
    lines = columns(rows, align)
    if width is None:
        return lines
    start = len(lines[0]) - len(rows[0][-1])
    return [cut(line[:start] + cut_in_middle(line[start:], max(width - start, 1)), width) for line in lines]


def wrap(words: Sequence[str], width: int) -> list[str]:
    """Return lines of at most `width` columns; a longer word has a line of its own."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def cut(text: str, width: int | None) -> str:
    """Return `text`, shortened with ``…`` to `width` columns; None: not shortened."""
    if width is None or len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…"


def cut_in_middle(text: str, width: int) -> str:
    """Return `text`, shortened to `width` columns with ``…`` in its middle: names that begin alike end differently."""
    if len(text) <= width:
        return text
    kept = max(width - 1, 0)
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
