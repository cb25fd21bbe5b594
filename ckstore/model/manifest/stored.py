"""The files in the directory of a checkpoint: its blobs, or the files that these are read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ckstore.model.digest import Algorithm

BLOB_MAX_BYTES = 2**31  # chunks have at most 1 GiB, and a pack little more than its pieces


class BlobRecord(NamedTuple):
    """Digest and size in bytes of a blob that a checkpoint needs."""

    digest: str
    nbytes: int


class OldPiece(NamedTuple):
    """A piece of an older checkpoint in memory, at the place for a piece of the same length of a newer one."""

    piece: str  # its digest, for verification
    blob: str  # digest of the blob that contains it
    offset: int  # its offset in the blob


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The files from which a checkpoint reads its blobs: here, each blob is a file. Other forms override this."""

    is_plain: ClassVar[bool] = True
    """Whether every blob is a file. Ask it first where a save or a load would ask for each blob."""

    def stored(self, blobs: Sequence[BlobRecord]) -> Sequence[BlobRecord]:
        """Return the files in the directory of a checkpoint with these blobs."""
        return blobs

    def has_file(self, digest: str) -> bool:
        """Whether a file contains the bytes of a blob as they are, so that they can be mapped, linked and shared."""
        del digest
        return True

    def file_of(self, digest: str) -> str:
        """Return the digest of the file that holds a plain blob."""
        return digest

    def path(self, digest: str) -> list[str]:
        """Return the plain digests of all blobs that are needed to read a blob, itself first, each once."""
        return [digest]

    def files_of(self, digest: str) -> list[str]:
        """Return the digests of all files that are needed to read a blob, its own first."""
        return list(map(self.file_of, self.path(digest)))

    def document(self, checkpoint: str, plain: bytes, algorithm: Algorithm) -> bytes:
        """Return the ``manifest.json`` of a checkpoint with the plain manifest `plain`, whose id is `checkpoint`."""
        del checkpoint, algorithm
        return plain


PLAIN_FORM = StoredForm()
