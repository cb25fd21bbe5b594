"""Text for users: counts, shares, shortened lists and printable names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ckstore.model.sizes import size_text

LINES_SHOWN = 30
"""The maximum number of lines of a list in the text of a report."""
_ITEMS_SHOWN = 8
PUSH_AGAIN = "push that checkpoint again from a store that has all of it"


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Return `text` with control characters and lone surrogates as escapes.

    Another user may have written names and messages. They must not move the cursor in the reader's terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or (keep_lines and char in "\n\t") else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def arguments(*texts: object) -> str:
    """Return the last arguments of a command, quoted for a shell. A text such as ``-a`` is not read as an option."""
    import shlex  # only for an error

    quoted = shlex.join(map(str, texts))
    return f"-- {quoted}" if any(str(text).startswith("-") for text in texts) else quoted


def named(name: str) -> str:
    """Return the text for a name in a state, including the empty name of the state itself."""
    return printable(name) or "(the state itself)"


def mending_there(what: str = "that object") -> str:
    """Return how to repair a damaged object on a remote, since a push does not check existing bytes."""
    return f"delete {what} from the remote, then {PUSH_AGAIN}"


def counted(count: int, what: str) -> str:
    """Return a count with its noun, such as ``1 blob`` or ``3 blobs``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def beyond_text(count: int) -> str:
    """Return a text on the number of values that a conversion to another dtype changed by more than rounding."""
    return f"{counted(count, 'value')} outside the range of the new dtype"


def headed(word: str, text: str) -> str:
    """Return a line with its heading word, if there is one, such as ``damaged  main@500 …``."""
    return f"{word}  {text}" if word else text


def some_of(items: Sequence[str], most: int = _ITEMS_SHOWN, separator: str = ", ") -> str:
    """Return the first items in one line, ``a, b and 3 more``."""
    more = len(items) - most
    return separator.join(items[:most]) + (f" and {more} more" if more > 0 else "")


def first_of(items: Iterable[object]) -> list[str]:
    """Return the first items as lines, followed by a line with the number of remaining items."""
    lines = [str(one) for one in items]
    more = len(lines) - LINES_SHOWN
    return [*lines[:LINES_SHOWN], f"and {more} more"] if more > 0 else lines


def in_lines(details: Iterable[object], summary: Iterable[str] = ()) -> str:
    """Return the first details, each on a line, followed by the summary."""
    return "\n".join([*first_of(details), *summary])


def number_text(value: float) -> str:
    """Return a metric with about five significant digits, and integers with all digits."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.5g}"


def metrics_text(metrics: Mapping[str, int | float]) -> str:
    """Return metrics as text, such as ``loss=2.1031 val_loss=2.2``."""
    return " ".join(f"{printable(name)}={number_text(value)}" for name, value in metrics.items())


def share_text(part: int, whole: int) -> str:
    """Return a share such as ``96.9 %``; only the whole has the share ``100.0 %``."""
    if part >= whole:
        return "100.0 %"
    return f"{math.floor(part * 1000 / whole) / 10:.1f} %"


def new_text(whole_bytes: int, new_bytes: int) -> str:
    """Return a text with a size and its new part, such as ``2.9 MiB, 2.0 MiB new (66.9 %)``.

    The new part may be slightly larger than the size, because small tensors are aligned in the pack that they share.
    """
    if new_bytes >= whole_bytes > 0:
        return f"{size_text(whole_bytes)}, all new"
    share = f" ({share_text(new_bytes, whole_bytes)})" if whole_bytes else ""
    return f"{size_text(whole_bytes)}, {size_text(new_bytes)} new{share}"


def time_text(time: str) -> str:
    """Return the text for a time of a manifest, without fractions of a second: ``2026-11-25 09:30:00 UTC``."""
    return f"{printable(time[:19].replace('T', ' '))} UTC"
