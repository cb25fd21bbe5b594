"""What the catalog answers with; plain values, no SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ckstore.model.names import CheckpointKey

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo, Stamp


class Listing(NamedTuple):
    """What rows say of checkpoints without more than their place in the order of commits.

    Attributes:
        stamps: (run, step) -> stamp of the directory and the manifest that the row was made from, of the rows that are
            as they were written.
        sequences: (run, step) -> sequence number, as the manifest said.
        wrong_count: How many rows are not as they were written: a bit has flipped in them.
    """

    stamps: dict[CheckpointKey, Stamp]
    sequences: dict[CheckpointKey, int]
    wrong_count: int


class Proposal(NamedTuple):
    """What the catalog proposes of a store whose directories were listed, for those who show the newest checkpoints.

    Attributes:
        newest: What rows say of the newest checkpoints that are listed, and of the one whose manifest was written last.
        unknown: The places that are listed, and that the catalog knows under another inode number or not at all.
        missing: The places of rows that are not listed.
    """

    newest: Listing
    unknown: set[CheckpointKey]
    missing: set[CheckpointKey]


class Described(NamedTuple):
    """What rows say of checkpoints.

    Attributes:
        infos: Of the rows that are as they were written.
        wrong_count: How many are not.
    """

    infos: list[CheckpointInfo]
    wrong_count: int


class Outline(NamedTuple):
    """What opening a store compares with the directories.

    Attributes:
        listing: What the rows of all checkpoints say.
        tags: Name -> (run, step).
        blobs_listed: At which start of the machine every blob was looked at last; empty: at none.
    """

    listing: Listing
    tags: dict[str, CheckpointKey]
    blobs_listed: str


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
