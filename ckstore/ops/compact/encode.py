"""Encode one blob, and check that it decodes correctly before any link to the plain blob is removed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ckstore.codecs import container
from ckstore.codecs.container import Header, Run
from ckstore.errors import DamagedBlob, SaveFailed
from ckstore.fs import direct
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES, BlobRecord
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.encoded import Decoder
from ckstore.objects.staging import Staging
from ckstore.ops.compact.match import Segment

# The maximum total size of the plain blobs that are kept in memory. Blobs that are encoded one after another often have
# the same bases, and one pack is often the base of many small parts.
_KEPT_BYTES = 160 * 2**20


class BlobSource:
    """Reads plain blobs of open checkpoints, compares each with its digest, and keeps a few in memory.

    Use an instance in one thread only.
    """

    def __init__(self, before_each: Callable[[], None] = lambda: None) -> None:
        self.before_each = before_each
        self._decoders: dict[str, Decoder] = {}
        self._sizes: dict[str, int] = {}
        self._kept: OrderedDict[str, bytearray] = OrderedDict()

    def add(self, directory: CheckpointDirectory) -> None:
        """Add a checkpoint to read from, which the caller must keep open."""
        decoder = Decoder(directory)
        for blob in directory.manifest.blobs:
            self._decoders[blob.digest] = decoder
            self._sizes[blob.digest] = blob.nbytes

    def read(self, digest: str) -> bytearray:
        """Return a plain blob.

        Raises:
            DamagedBlob: The blob is damaged, so it must neither be encoded nor serve as a base.
        """
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        data = bytearray(self._sizes[digest])
        self._decoders[digest].read(digest, 0, memoryview(data), "the compaction")
        found = algorithm_of(digest).digest(data)
        if found != digest:
            raise DamagedBlob(f"blob {digest} is damaged: its bytes have the digest {found}", blob=digest)
        self._kept[digest] = data
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        return data

    def part(self, digest: str, start: int, nbytes: int) -> memoryview:
        """Return bytes of a plain blob."""
        return memoryview(self.read(digest))[start : start + nbytes]

    def sample(self, digest: str, start: int, nbytes: int) -> bytearray:
        """Return unverified bytes of a plain blob, for decisions in which an error only costs space."""
        data = bytearray(nbytes)
        self._decoders[digest].read(digest, start, memoryview(data), "the compaction")
        return data

    def has(self, digest: str) -> bool:
        """Whether an open checkpoint has a blob."""
        return digest in self._sizes

    def close(self) -> None:
        """Close all files and drop the blobs in memory."""
        for decoder in self._decoders.values():
            decoder.close()
        self._decoders.clear()
        self._sizes.clear()
        self._kept.clear()


def header_of(blob: BlobRecord, segments: list[Segment]) -> Header:
    """Return the header of the encoded form of a blob."""
    bases = list(dict.fromkeys(segment.base for segment in segments if segment.base))
    runs = tuple(
        Run(s.nbytes, s.width, s.prediction, bases.index(s.base) if s.base else -1, s.offset) for s in segments
    )
    return Header(blob.digest, blob.nbytes, tuple(bases), runs)


def encode(source: BlobSource, blob: BlobRecord, header: Header) -> bytes:
    """Return the content of the encoded file of a blob."""
    return container.encode_blob(source.read(blob.digest), header, source.part, before_each=source.before_each)


def stage(source: BlobSource, staging: Staging, blob: BlobRecord, data: bytes) -> BlobRecord:
    """Write an encoded blob durably, read it back from the disk, decode it, and return its record.

    Raises:
        SaveFailed: The file does not decode to the plain blob.
    """
    digest = algorithm_of(blob.digest).digest(data)
    staging.put(digest, memoryview(data))
    # Read the bytes on the disk instead of those in the page cache, since the plain blob will be deleted.
    back = direct.read_range(staging.path_of(digest), 0, len(data) + 1)
    try:
        plain = container.decode_blob(
            back, source.part, where=f"blob {digest}", most_bytes=BLOB_MAX_BYTES, before_each=source.before_each
        )
    except DamagedBlob as error:
        raise SaveFailed(f"blob {digest} cannot be decoded after it was written: {error.message}") from error
    if algorithm_of(blob.digest).digest(plain) != blob.digest:
        raise SaveFailed(f"blob {digest} does not decode to {blob.digest}", hint="the plain blob is kept")
    return BlobRecord(digest, len(data))
