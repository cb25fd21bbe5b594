"""What the catalog answers with; plain values, no SQLite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class PieceLocation(NamedTuple):
    """Where the store has a piece.

    Attributes:
        blob: Digest of the blob that holds it.
        blob_nbytes: Size of the whole blob in bytes.
        offset: Bytes from the start of the blob to the piece.
        length: Size of the piece in bytes.
    """

    blob: str
    blob_nbytes: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class LeafRow:
    """One value that a checkpoint keeps as bytes.

    Attributes:
        name: Path in the state.
        kind: ``torch``, ``numpy``, ``bytes`` or ``str``.
        dtype: Empty for bytes and str.
        shape: Sizes, outermost first; empty for a scalar, bytes and str.
        nbytes: Bytes of its elements, without what lies between them in its storage.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """Something that happened to the store.

    Attributes:
        at: UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``.
        kind: One word.
        detail: Plain JSON.
    """

    at: str
    kind: str
    detail: dict[str, Any]
