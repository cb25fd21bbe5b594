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
    """A blob that is there in encoded form."""

    nbytes: int  # size of the plain blob
    file: int  # index into the files of the directory
    bases: tuple[str, ...]  # digests of the plain blobs that it is decoded with


class OldPiece(NamedTuple):
    """What is in memory where a piece of a newer checkpoint is to be: one as long, of an older one."""

    piece: str  # its digest, by which it is checked
    blob: str  # digest of the blob in which it lies
    offset: int  # where in it


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the blobs of a checkpoint are stored."""

    checkpoint: str  # its id
    # Every blob in the directory, plain or an encoded form, by the digest of its own bytes.
    files: tuple[BlobRecord, ...]
    encoded: Mapping[str, EncodedBlob]  # digest of a plain blob -> its encoded form
    place: int = 0  # of the checkpoint in the chain of its run
    # As `encoded`, with bases that need not be there; at a remote alone.
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
