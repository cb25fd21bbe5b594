"""The files in the directory of a checkpoint: its blobs, or the encoded files that these are decoded from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BLOB_MAX_BYTES = 2**31  # chunks have at most 1 GiB, and a pack little more than its pieces


class BlobRecord(NamedTuple):
    """Digest and size in bytes of a blob that a checkpoint needs."""

    digest: str
    nbytes: int


class EncodedBlob(NamedTuple):
    """A blob that is stored in encoded form."""

    nbytes: int  # size of the plain blob
    file: int  # index into the files of the directory
    bases: tuple[str, ...]  # digests of the plain blobs that it is decoded with


class OldPiece(NamedTuple):
    """A piece of an older checkpoint in memory, at the place for a piece of the same length of a newer one."""

    piece: str  # its digest, for verification
    blob: str  # digest of the blob that contains it
    offset: int  # its offset in the blob


@dataclass(frozen=True, slots=True)
class Encoding:
    """The stored forms of the blobs of a checkpoint."""

    checkpoint: str  # id of the checkpoint
    # Every blob in the directory, plain or in encoded form, with the digest of its own bytes.
    files: tuple[BlobRecord, ...]
    encoded: Mapping[str, EncodedBlob]  # digest of a plain blob -> its encoded form
    place: int = 0  # position of the checkpoint in the chain of its run
    # As `encoded`, with bases that may be missing. Only on a remote.
    links: Mapping[str, EncodedBlob] = field(default_factory=dict)

    def path(self, digest: str) -> list[str]:
        """Return the plain digests of all blobs that a blob is decoded with, itself first, each once."""
        found, waiting = dict.fromkeys([digest]), [digest]
        while waiting:
            form = self.encoded.get(waiting.pop())
            for base in () if form is None else form.bases:
                if base not in found:
                    found[base] = None
                    waiting.append(base)
        return list(found)

    def file_of(self, digest: str) -> str:
        """Return the digest of the file that holds a plain blob."""
        form = self.encoded.get(digest)
        return digest if form is None else self.files[form.file].digest
