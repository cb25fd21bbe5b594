"""Define a `repr` of results that fits on one screen of a Python prompt; their `str` is a text for users."""

from __future__ import annotations

import html
import reprlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import SupportsIndex, TypeVar, overload

T = TypeVar("T")

COLUMNS = 120
MOST_LINES = 24
MOST_CHARS = 1500
_ITEMS_SHOWN = 3
_VALUE_CHARS = 60
_LINE_CHARS = COLUMNS - 4


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxtuple = _SHORT.maxlist = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdict = _ITEMS_SHOWN
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _VALUE_CHARS


def brief(*shown: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator that gives a dataclass a short `repr` of the fields `shown`, or of all fields.

    It must be placed above ``@dataclass``.
    """

    def with_brief_repr(cls: type[T]) -> type[T]:
        def text(self: T) -> str:
            names = shown or [one.name for one in fields(self) if one.repr]  # type: ignore[arg-type]
            parts = [f"{name}={_value(getattr(self, name))}" for name in names]
            return _laid_out(type(self).__qualname__, [*parts, "..."] if shown else parts)

        cls.__repr__ = text  # type: ignore[method-assign,assignment]
        if "_repr_html_" not in vars(cls):
            cls._repr_html_ = _html  # type: ignore[attr-defined]
        return cls

    return with_brief_repr


class BriefList(list[T]):
    """A list with a short `repr`.

    The `repr` of a long list shows only the first and the last items, each on one line.
    """

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> BriefList[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | BriefList[T]:
        return BriefList(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __repr__(self) -> str:
        # Strings are usually short names that users copy into programs, so even a list of many strings is shown as a
        # Python list. Other items are easier to read with one line each.
        is_short = len(self) <= (MOST_CHARS // 4 if self and isinstance(self[0], str) else _ITEMS_SHOWN)
        if is_short and len(text := super().__repr__()) <= MOST_CHARS and "\n" not in text:
            return text
        most = MOST_LINES - 3  # both brackets, and the line with the number of omitted items
        first = self[: most // 2] if len(self) > most else self
        last = self[len(self) - most + len(first) :] if len(self) > most else []
        more = [f"... {len(self) - len(first) - len(last):,} more ..."] if last else []
        lines = [*map(_line, first), *more, *map(_line, last)]
        return "\n".join(["[", *(f"    {line}" for line in lines), f"] <{len(self):,} in all>"])

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook, with a line for each item, or for the first and last of a long list."""
        most = 2 * MOST_LINES
        shown = self if len(self) <= most else [*self[:MOST_LINES], *self[-MOST_LINES:]]
        lines = [html.escape(_line(item)) for item in shown]
        if len(self) > most:
            lines.insert(MOST_LINES, f"... {len(self) - most:,} more ...")
        return f"<pre>{chr(10).join(lines)}</pre><p>{len(self):,} in all</p>"


def _html(result: object) -> str:
    """Return the `str` of a result as HTML for a notebook, cut to two screens."""
    lines = str(result).splitlines()
    most = 2 * MOST_LINES
    more = [f"... {len(lines) - most:,} more lines: print it"] if len(lines) > most else []
    return f"<pre>{html.escape(chr(10).join([*lines[:most], *more]))}</pre>"


def _line(item: object) -> str:
    text = repr(item) if isinstance(item, str) else str(item).partition("\n")[0]
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _LINE_CHARS else f"{text[: _LINE_CHARS - 3]}..."


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return str(value)
    try:
        text = _SHORT.repr(value)
    except ValueError:  # an integer with more digits than str() accepts
        text = f"<{type(value).__name__}>"
    text = text.replace("(\n    ", "(").replace(",\n)", ")").replace("\n    ", " ")  # put a nested result on one line
    if len(text) > _VALUE_CHARS and isinstance(value, list | tuple) and value and is_dataclass(value[0]):
        return f"<{len(value):,} {type(value[0]).__name__}>"  # a few of the items would be meaningless
    if len(text) > _VALUE_CHARS:
        text = f"{text[: _VALUE_CHARS - 3]}..."
    is_long = isinstance(value, Collection) and not isinstance(value, str | bytes) and len(value) > _ITEMS_SHOWN
    return f"{text} <{len(value)} in all>" if is_long else text  # type: ignore[arg-type]


def _laid_out(name: str, parts: list[str]) -> str:
    """Return the parts on one line, or each part on its own line if one line would be too long."""
    line = f"{name}({', '.join(parts)})"
    if len(line) <= COLUMNS:
        return line
    lines = [f"    {part}," for part in parts]
    while len(lines) > MOST_LINES - 2 or len(name) + sum(map(len, lines)) + len(lines) > MOST_CHARS - 20:
        lines[-2:] = ["    ..."]
    return "\n".join([f"{name}(", *lines, ")"])


@brief()
@dataclass(frozen=True, slots=True)
class HtmlReport:
    """A self-contained HTML page about a store.

    Attributes:
        html: The text of the page.
    """

    html: str

    def __str__(self) -> str:
        return f"a page of {len(self.html)} characters"

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its styles do not change the notebook."""
        page = html.escape(self.html)
        return f'<iframe title="ckstore report" style="width:100%;height:640px;border:0" srcdoc="{page}"></iframe>'
