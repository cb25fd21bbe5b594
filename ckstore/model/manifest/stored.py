"""The files in the directory of a checkpoint: its blobs, or the files from which its blobs are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ckstore.model.digest import Algorithm

BLOB_MAX_BYTES = 2**31  # a chunk has at most 1 GiB, and a pack is only slightly larger than its pieces


class BlobRecord(NamedTuple):
    """Digest and size in bytes of a blob that a checkpoint needs."""

    digest: str
    nbytes: int


class OldPiece(NamedTuple):
    """A piece of an older checkpoint, whose bytes are in the memory for an equally long piece of a newer checkpoint."""

    piece: str  # its digest, for verification
    blob: str  # digest of the blob that contains it
    offset: int  # its offset in the blob


@dataclass(frozen=True, slots=True)
class StoredForm:
    """The files from which the blobs of a checkpoint are read.

    In the form of this class, each blob is a file. Other forms override the methods.
    """

    is_plain: ClassVar[bool] = True
    """Whether every blob is a file, so that a save or a load need not query each blob."""

    def stored(self, blobs: Sequence[BlobRecord]) -> Sequence[BlobRecord]:
        """Return the files in the directory of a checkpoint with these blobs."""
        return blobs

    def has_file(self, digest: str) -> bool:
        """Whether a file contains the plain bytes of a blob, so that the file can be mapped, linked and shared."""
        del digest
        return True

    def file_of(self, digest: str) -> str:
        """Return the digest of the file that contains a blob in plain or encoded form."""
        return digest

    def path(self, digest: str) -> list[str]:
        """Return the plain digests of all blobs that are needed to read a blob, beginning with the blob itself."""
        return [digest]

    def files_of(self, digest: str) -> list[str]:
        """Return the digests of all files that are needed to read a blob, beginning with the file of the blob."""
        return list(map(self.file_of, self.path(digest)))

    def document(self, checkpoint: str, plain: bytes, algorithm: Algorithm) -> bytes:
        """Return the ``manifest.json`` of the checkpoint with the id `checkpoint` and the plain manifest `plain`."""
        del checkpoint, algorithm
        return plain


PLAIN_FORM = StoredForm()
