"""How values become parameters of statements and columns become values.

SQLite keeps any bytes as text, but Python's module refuses strings with lone surrogates, which
names and messages may have. They are bound as bytes in WTF-8, with ``CAST(? AS TEXT)`` around.
Inode numbers and times go up to 2^64; SQLite's integers are signed.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, TypeVar

from ckstore.catalog import forms
from ckstore.model.canonical import encode_metric
from ckstore.model.manifest.info import Stamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PARAMETERS = 500
T = TypeVar("T")

decode_text = functools.partial(str, encoding="utf-8", errors="surrogatepass")
"""The `text_factory` of a connection that reads what `encode_text` wrote."""

# Sorted as in a manifest, so that rows do not tell whether a save or a look at the directory made them.
_compact = json.JSONEncoder(separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def encode_text(text: str) -> str | bytes:
    """Return `text` as a parameter for ``CAST(? AS TEXT)``."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def encode_json(value: object) -> str:
    """Return plain JSON, in ASCII."""
    return _compact(value)


def encode_metrics(metrics: Mapping[str, int | float]) -> str:
    """Return metrics as JSON; numbers that JSON lacks are strings, as in the manifest."""
    return _compact({name: encode_metric(value) for name, value in metrics.items()})


def decode_metrics(texts: Sequence[str]) -> list[dict[str, int | float]]:
    """Return metrics from what `encode_metrics` gave, many at once: one call takes a fifth of the time of many."""
    try:
        found: list[Any] = json.loads(f"[{','.join(texts)}]")
    except (ValueError, RecursionError) as error:
        msg = f"metrics: wanted JSON, found: {error}"
        raise forms.NotOfItsForm(msg) from error
    if len(found) != len(texts) or not all(type(metrics) is dict for metrics in found):
        msg = "metrics: wanted one JSON object each"
        raise forms.NotOfItsForm(msg)
    for metrics in found:
        forms.check_metrics(metrics)
        for name, value in metrics.items():
            if isinstance(value, str):
                metrics[name] = float(value)
    return found


def encode_stamp(stamp: Stamp) -> tuple[int, int, int, int]:
    """Return unsigned 64-bit numbers as the signed ones with the same bits."""
    dir_inode, inode, mtime_ns, ctime_ns = (n - 2**64 if n >= 2**63 else n for n in stamp)
    return dir_inode, inode, mtime_ns, ctime_ns


def decode_stamps(*columns: Sequence[int]) -> Iterator[Stamp]:
    """Return the stamps whose fields are the columns, with unsigned numbers again."""
    for n, column in enumerate(columns):
        if min(column) < 0:  # few are
            columns = (*columns[:n], [number % 2**64 for number in column], *columns[n + 1 :])
    return map(Stamp._make, zip(*columns, strict=True))


def in_parts(items: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    """Give `items` in parts that one statement takes, each with its ``(?, ?, ...)``."""
    for at in range(0, len(items), _PARAMETERS):
        part = items[at : at + _PARAMETERS]
        yield f"({', '.join('?' * len(part))})", part
