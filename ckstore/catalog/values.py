"""What the catalog answers with; plain values, no SQLite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ckstore.model.published import Stamp


class Known(NamedTuple):
    """What a row says of a checkpoint without more than its place in the order of commits.

    Attributes:
        stamp: Of the directory and the manifest that the row was made from.
        sequence: As the manifest said.
    """

    stamp: Stamp
    sequence: int


class Listing(NamedTuple):
    """The rows of checkpoints.

    Attributes:
        known: (run, step) -> what the row says, of the rows that are as they were written.
        wrong_count: How many rows are not: a bit has flipped in them.
    """

    known: dict[tuple[str, int], Known]
    wrong_count: int

    @property
    def stamps(self) -> dict[tuple[str, int], Stamp]:
        """(run, step) -> stamp."""
        return {place: known.stamp for place, known in self.known.items()}


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
