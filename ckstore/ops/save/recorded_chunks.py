"""Data that a save need not read: storages of an earlier checkpoint, and chunks with unchanged fingerprints.

If the caller names storages as unchanged, the save does not read them. Instead, it claims their blobs, whose digests
are in the manifest of the earlier checkpoint. Only a sample of their chunks is available, and the save hashes these
chunks. If one of these chunks differs from the earlier checkpoint, nothing is saved.

If a chunk is in another memory space, such as that of a GPU, its fingerprint is computed when the chunk is read. If a
later save computes the same fingerprint, it uses the digest that this process computed at the last reading. A
fingerprint is never the name of a blob. Because a fingerprint could be wrong, each save also compares the reused blobs
that it rereads with the live bytes (`recheck`).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ckstore.errors import NotUnchanged, SaveFailed, StateChanged
from ckstore.model.manifest.captured import bytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckstore.model.digest import Algorithm
    from ckstore.model.manifest.captured import ByteSource, Captured, MemorySpace
    from ckstore.ops.context import Context

NEXT = "save again: the next save copies everything"


class RecordedChunk(NamedTuple):
    """One piece of a storage, as in the manifest of an earlier checkpoint."""

    start: int
    stop: int
    piece: str
    blob: str
    blob_nbytes: int
    offset: int


class RecordedSource:
    """A storage of an earlier checkpoint, as a `ByteSource` whose bytes must not be requested."""

    space = None

    def __init__(
        self,
        name: str,
        chunks: tuple[RecordedChunk, ...],
        samples: Mapping[int, memoryview],
        base: str,
        copied_in: str,
        *,
        is_named: bool = True,
    ) -> None:
        # `name` and `nbytes`: as in `ByteSource`.
        self.name = name
        self.nbytes = chunks[-1].stop
        self.chunks = chunks  # the pieces of the storage, in order
        self.base = base  # the earlier checkpoint, as ``RUN@STEP``
        self.copied_in = copied_in  # the checkpoint for which the whole storage was last copied
        self._samples = samples
        # Whether the caller named the storage as unchanged. Otherwise its fingerprint is unchanged.
        self._is_named = is_named

    def view(self, start: int, stop: int) -> memoryview | None:
        """Raise `SaveFailed`, since the bytes are not available."""
        # The trainer has not copied these bytes, so the shared memory may still have the bytes of an earlier save.
        raise SaveFailed(f"the bytes {start} to {stop} of {self.name} are not available", hint=NEXT)

    def read_into(self, start: int, stop: int, out: memoryview) -> None:  # noqa: ARG002
        """Raise like `view`."""
        self.view(start, stop)

    def changed(self) -> bool:
        """Return False; `check` compares the available chunks."""
        return False

    def check(self, chunk: RecordedChunk, algorithm: Algorithm) -> None:
        """Compare the current bytes of a chunk with its digest, if the bytes are available."""
        data = self._samples.get(chunk.start)
        # One chunk in 32 is available, a different one in each save, so 32 saves compare all chunks
        # (docs/explanation/async.md).
        if data is None or algorithm.digest(data) == chunk.piece:
            return
        since = "" if self.copied_in == self.base else f"; checkpoints after {self.copied_in} may have old bytes of it"
        said = "was named in unchanged=" if self._is_named else "has an unchanged fingerprint on its device"
        msg = f"{self.name} {said}, but differs from {self.base}; nothing was published{since}"
        raise NotUnchanged(msg, hint=f"do not name it as unchanged; {NEXT}" if self._is_named else NEXT)

    def missing(self, reason: str) -> SaveFailed:
        """Return the error for a blob that is missing or incomplete in the store."""
        return SaveFailed(f"{self.name} cannot be reused from {self.base}: {reason}. Nothing was published", hint=NEXT)


def state_changed(name: str) -> StateChanged:
    """Return the error for a tensor that was changed while it was being saved."""
    msg = f"{name or 'the state'} was changed while it was being saved; nothing was published"
    return StateChanged(msg, hint="do not step the optimizer or write to tensors until save() has returned")


Key = tuple[str, int, int, int]
"""The name of a source, the number of earlier sources with that name, and the start and stop of a chunk in bytes."""


class FingerprintedChunks:
    """The chunks of one save in a memory space; all methods except `settle` may be called from several threads."""

    def __init__(self, context: Context, run: str, captured: Captured, space: MemorySpace) -> None:
        self.claimed_bytes = 0
        self._space = space
        self._context = context
        self._run = run
        sources = [source for source in captured.sources if source.space is not None]
        counts: Counter[str] = Counter()
        self._numbers: dict[int, int] = {}
        for source in sources:
            # Several sources may have the same name, since ranks save parts of one tensor.
            self._numbers[id(source)] = counts[source.name]
            counts[source.name] += 1
        chunk_bytes = context.settings.chunk_bytes
        below = captured.pack_below_bytes(chunk_bytes)
        self._chunks: list[tuple[ByteSource, int, int]] = []
        for source in sources:
            step = chunk_bytes if source.nbytes >= below else max(source.nbytes, 1)
            starts = range(0, source.nbytes, step)
            self._chunks += [(source, start, min(start + step, source.nbytes)) for start in starts]
        self._keys = [self._key(*chunk) for chunk in self._chunks]
        self._before = self._fingerprints()
        # Remove the fingerprints until this save has succeeded, so that everything is read after a failed save.
        seen = context.known.chunk_fingerprints.pop(run, {})
        pairs = zip(self._keys, self._before, strict=True) if self._before else ()
        self._known = {key: seen[key][1] for key, found in pairs if key in seen and seen[key][0] == found}
        self._digests: dict[Key, str] = {}
        self._mutex = threading.Lock()

    def covers(self, source: ByteSource) -> bool:
        """Whether the source is in the memory space."""
        return id(source) in self._numbers

    def known(self, source: ByteSource, start: int, stop: int) -> str | None:
        """Return the digest of these bytes from their last reading, or None if the fingerprint is new or changed."""
        return self._known.get(self._key(source, start, stop))

    def claimed(self, source: ByteSource, start: int, stop: int, digest: str) -> None:
        """Record that bytes are saved with a known digest and without being read."""
        self.read(source, start, stop, digest)
        with self._mutex:
            self.claimed_bytes += stop - start

    def read(self, source: ByteSource, start: int, stop: int, digest: str) -> None:
        """Record the digest of bytes that were read, if the source is in the memory space."""
        if self.covers(source):
            with self._mutex:
                self._digests[self._key(source, start, stop)] = digest

    def digests(self, batch: Sequence[ByteSource]) -> list[str]:
        """Return the digests of small sources; sources without a known digest are read in few transfers."""
        found = {i: known for i, one in enumerate(batch) if (known := self.known(one, 0, one.nbytes)) is not None}
        wanted = [i for i, one in enumerate(batch) if i not in found and self.covers(one)]
        fetched = dict(zip(wanted, self._space.fetch([batch[i] for i in wanted]), strict=True)) if wanted else {}
        digest_of = self._context.algorithm.digest
        digests = []
        for i, source in enumerate(batch):
            if (known := found.get(i)) is not None:
                self.claimed(source, 0, source.nbytes, known)
                digests.append(known)
                continue
            data = fetched.get(i)
            digest = digest_of(bytes_of(source, 0, source.nbytes) if data is None else data)
            self.read(source, 0, source.nbytes, digest)
            digests.append(digest)
        return digests

    def settle(self) -> None:
        """Check that the memory space did not change during the save, and keep the digests for the next save.

        Raises:
            StateChanged: The bytes in the memory space changed during the save.
        """
        after = self._fingerprints()
        if not (self._before and after):
            return
        # The bytes were read between two computations of the fingerprints. If the fingerprints are equal, the bytes did
        # not change, so the digests belong to these fingerprints.
        for key, old, new in zip(self._keys, self._before, after, strict=True):
            if old != new:
                raise state_changed(key[0])
        found = zip(self._keys, self._before, strict=True)
        self._context.known.chunk_fingerprints[self._run] = {
            key: (old, self._digests[key]) for key, old in found if key in self._digests
        }

    def _key(self, source: ByteSource, start: int, stop: int) -> Key:
        return source.name, self._numbers.get(id(source), -1), start, stop

    def _fingerprints(self) -> list[bytes]:
        return self._space.fingerprints(self._chunks)
