"""The results of catalog queries, and conversions between values and parameters or columns.

SQLite stores any bytes as text, but Python's module refuses strings with lone surrogates, which names and messages may
have. They are bound as bytes in WTF-8, inside ``CAST(? AS TEXT)``. Inode numbers and times go up to 2^64, but SQLite's
integers are signed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ckstore.catalog import row_checks
from ckstore.model.canonical import encode_metric
from ckstore.model.manifest.health import Health
from ckstore.model.manifest.info import CheckpointInfo, Stamp
from ckstore.model.names import CheckpointKey


class CatalogListing(NamedTuple):
    """The checkpoints in the catalog, with only their place in the order of commits."""

    # key -> stamp of the directory and the manifest that the row was made from, of the rows that are as they
    # were written.
    stamps: dict[CheckpointKey, Stamp]
    sequences: dict[CheckpointKey, int]  # key -> sequence number, as the manifest said
    wrong_count: int  # how many rows are not as they were written: a bit has flipped in them


class Proposal(NamedTuple):
    """The newest checkpoints of a store according to the catalog, compared with a listing of its directories."""

    # What rows say of the newest checkpoints that are listed, and of the one whose manifest was written last.
    newest: CatalogListing
    # The places that are listed, and that the catalog knows under another inode number or not at all.
    unknown: set[CheckpointKey]
    missing: set[CheckpointKey]  # the places of rows that are not listed


class Described(NamedTuple):
    """Descriptions of checkpoints from rows."""

    infos: list[CheckpointInfo]  # of the rows that are as they were written
    wrong_count: int  # how many are not


class Outline(NamedTuple):
    """The facts that opening a store compares with the directories."""

    listing: CatalogListing  # what the rows of all checkpoints say
    tags: dict[str, CheckpointKey]  # name -> key, of the first generation
    blobs_listed: str  # at which start of the machine every blob was looked at last; empty: at none


class Counted(NamedTuple):
    """The number of checkpoints in a catalog at one moment."""

    checkpoints: int  # how many there are
    newest: int  # the greatest sequence number; 0 without one
    at_s: float  # when it was asked, by the monotonic clock


class PieceLocation(NamedTuple):
    """The location of a piece in the store."""

    blob: str  # digest of the blob that holds it
    blob_nbytes: int  # size of the whole blob in bytes
    offset: int  # bytes from the start of the blob to the piece
    length: int  # size of the piece in bytes


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


def encode_health(health: Health | None) -> str:
    """Return why a checkpoint is unhealthy and which parts no longer change, or an empty text."""
    if health is None or not (health.unhealthy or health.unchanged):
        return ""
    return _compact([health.unhealthy, *health.unchanged])


def encode_metrics(metrics: Mapping[str, int | float]) -> str:
    """Return metrics as JSON. Numbers that JSON lacks are strings, as in the manifest."""
    return _compact({name: encode_metric(value) for name, value in metrics.items()})


def decode_metrics(texts: Sequence[str]) -> list[dict[str, int | float]]:
    """Decode many results of `encode_metrics` at once, in a fifth of the time of single calls."""
    try:
        found: list[Any] = json.loads(f"[{','.join(texts)}]")
    except (ValueError, RecursionError) as error:
        raise row_checks.NotOfItsForm(f"metrics: wanted JSON, found: {error}") from error
    if len(found) != len(texts) or not all(type(metrics) is dict for metrics in found):
        raise row_checks.NotOfItsForm("metrics: wanted one JSON object each")
    for metrics in found:
        row_checks.check_metrics(metrics)
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
    """Yield `items` in batches for one statement each, with the ``(?, ?, ...)`` for each batch."""
    for at in range(0, len(items), _PARAMETERS):
        part = items[at : at + _PARAMETERS]
        yield f"({', '.join('?' * len(part))})", part
