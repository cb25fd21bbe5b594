"""The files that a checkpoint has in its directory: its blobs, or what they are decoded from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BLOB_MAX_BYTES = 2**31  # chunks have at most 1 GiB, and a pack little more than its pieces


class BlobRecord(NamedTuple):
    """A blob that a checkpoint needs: its digest and its size in bytes."""

    digest: str
    nbytes: int


class EncodedBlob(NamedTuple):
    """A blob that is there in encoded form.

    Attributes:
        nbytes: Size of the plain blob.
        file: Index into the files of the directory.
        bases: Digests of the plain blobs that it is decoded with.
    """

    nbytes: int
    file: int
    bases: tuple[str, ...]


class OldPiece(NamedTuple):
    """What is in memory where a piece of a newer checkpoint is to be: one as long, of an older one.

    Attributes:
        piece: Its digest, by which it is checked.
        blob: Digest of the blob in which it lies.
        offset: Where in it.
    """

    piece: str
    blob: str
    offset: int


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the blobs of a checkpoint are stored.

    Attributes:
        checkpoint: Id of the checkpoint.
        files: Every blob in the directory, plain or an encoded form, by the digest of its own bytes.
        encoded: Digest of a plain blob -> its encoded form.
        place: Of the checkpoint in the chain of its run.
        links: As `encoded`, with bases that need not be there; at a remote alone.
    """

    checkpoint: str
    files: tuple[BlobRecord, ...]
    encoded: Mapping[str, EncodedBlob]
    place: int = 0
    links: Mapping[str, EncodedBlob] = field(default_factory=dict)

    def path(self, digest: str) -> list[str]:
        """Return the plain digests of all that a blob is decoded with, itself first, each once."""
        found, waiting = dict.fromkeys([digest]), [digest]
        while waiting:
            form = self.encoded.get(waiting.pop())
            for base in () if form is None else form.bases:
                if base not in found:
                    found[base] = None
                    waiting.append(base)
        return list(found)

    def file_of(self, digest: str) -> str:
        """Return the digest of the file in which a plain blob is."""
        form = self.encoded.get(digest)
        return digest if form is None else self.files[form.file].digest
