"""What a save need not read: storages that an earlier checkpoint has, and chunks on devices that are as they were.

Storages that are said to be the same are not read again: their blobs are claimed by the names that the manifest of that
checkpoint gives. Of some chunks the bytes are in hand, a sample: these are hashed, and if they are not what that
checkpoint holds, nothing is saved.

A chunk on a device has the fingerprint that it had when it was last read. A fingerprint is evidence and no name: what a
save finds so has the digest of bytes that this process has read. The share of hits that is read again each time
compares them with the live bytes, too (`recheck`).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, cast

from ckstore.errors import DamagedBlob, NotUnchanged, SaveFailed, StateChanged
from ckstore.model.manifest.captured import BytesSource
from ckstore.objects.checkpoints import CheckpointDirectory, places_with_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckstore.model.digest import Algorithm
    from ckstore.model.manifest.captured import ByteSource, Captured
    from ckstore.model.manifest.manifest import Manifest
    from ckstore.model.saver.messages import Order, ReusedStorage
    from ckstore.ops.context import Context
    from ckstore.tensors.device.device_copies import DeviceSource

NEXT = "save again: the next save copies everything"


class RecordedChunk(NamedTuple):
    """One piece of a storage, as the manifest of an earlier checkpoint has it."""

    start: int
    stop: int
    piece: str
    blob: str
    blob_nbytes: int
    offset: int


class RecordedSource:
    """A storage as an earlier checkpoint has it; a `ByteSource` whose bytes nothing asks for."""

    on_device = False

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
        # `name` and `nbytes`: As in `ByteSource`.
        self.name = name
        self.nbytes = chunks[-1].stop
        self.chunks = chunks  # its pieces, one after another
        self.base = base  # the checkpoint, as ``RUN@STEP``
        self.copied_in = copied_in  # the checkpoint for which the whole of it was copied last
        self._samples = samples
        self._is_named = is_named  # the caller says that it is unchanged; else the fingerprint of a device does

    def view(self, start: int, stop: int) -> memoryview | None:
        """Raise: the bytes are not here."""
        # The trainer never copied them: to hash whatever lies in the memory of an earlier save would store a lie.
        raise SaveFailed(f"the bytes {start} to {stop} of {self.name} are not in hand", hint=NEXT)

    def read_into(self, start: int, stop: int, out: memoryview) -> None:  # noqa: ARG002
        """Raise, as `view`."""
        self.view(start, stop)

    def changed(self) -> bool:
        """Return False; what is in hand is compared by `check`."""
        return False

    def check(self, chunk: RecordedChunk, algorithm: Algorithm) -> None:
        """Compare a chunk with what its bytes are now, if these are in hand."""
        data = self._samples.get(chunk.start)
        # One chunk in 32 is in hand, another one each time, so 32 saves compare all (docs/explanation/async.md).
        if data is None or algorithm.digest(data) == chunk.piece:
            return
        since = "" if self.copied_in == self.base else f"; checkpoints after {self.copied_in} may hold old bytes of it"
        said = "was named in unchanged=" if self._is_named else "has the fingerprint on its device that it had before"
        msg = f"{self.name} {said}, but is not as {self.base} has it; nothing was published{since}"
        raise NotUnchanged(msg, hint=f"do not name it as unchanged; {NEXT}" if self._is_named else NEXT)

    def missing(self, reason: str) -> SaveFailed:
        """Return the error for a blob that the store does not have, or not whole."""
        return SaveFailed(f"{self.name} cannot be taken from {self.base}: {reason}; nothing was published", hint=NEXT)


def manifest_of(context: Context, run: str, step: int, manifest_id: str) -> Manifest:
    """Return the manifest of the checkpoint that storages are to be taken from."""
    for path in places_with_id(context.layout, run, step, manifest_id):
        try:
            with CheckpointDirectory.at(path, context.layout.hash_prefix) as directory:
                if directory.manifest_id == manifest_id:
                    return directory.manifest
        except (FileNotFoundError, NotADirectoryError):
            continue
        except DamagedBlob as error:
            raise _not_taken(run, step, error.message) from error
    raise _not_taken(run, step, "it was deleted")


def _not_taken(run: str, step: int, reason: str) -> SaveFailed:
    msg = f"unchanged tensors were to be taken from {run}@{step}: {reason}; nothing was published"
    return SaveFailed(msg, hint=NEXT)


def recorded_sources(
    manifest: Manifest, order: Order, kept: ReusedStorage, in_hand: Mapping[int, Mapping[int, memoryview]]
) -> dict[int, RecordedSource]:
    """Return the storages that an order takes from an earlier checkpoint, by their index."""
    # `kept`: what of it is taken from there. `in_hand`: for each of these storages bytes of it, by where they start.
    old = {leaf.name: leaf for leaf in manifest.leaves}
    same_form = set(kept.storages)
    for leaf in order.captured.leaves:
        # Only the storage number may differ: another dtype or stride over the same bytes is another tensor.
        if leaf.storage in same_form and old.get(leaf.name) != leaf._replace(storage=kept.storages[leaf.storage][0]):
            same_form.remove(leaf.storage)
    base = manifest.name
    sources = {}
    for index, (old_index, copied_step) in kept.storages.items():
        place, samples = order.places[index], in_hand.get(index, {})
        chunks = _chunks(manifest, old_index) if index in same_form else ()
        lengths = {chunk.start: chunk.stop - chunk.start for chunk in chunks}
        same_chunks = all(lengths.get(start) == len(data) for start, data in samples.items())
        if not same_chunks or sum(lengths.values()) != place.nbytes:
            raise SaveFailed(f"{place.name} is kept in another form by {base}; nothing was published", hint=NEXT)
        copied_in, is_named = f"{order.run}@{copied_step}", index not in kept.unnamed
        sources[index] = RecordedSource(place.name, chunks, samples, base, copied_in, is_named=is_named)
    return sources


def _chunks(manifest: Manifest, storage: int) -> tuple[RecordedChunk, ...]:
    """Return the pieces of a storage; none if they do not make its bytes one after another."""
    record = manifest.storages[storage]
    chunks = []
    end = 0
    # Tiles of ranks are not in the order of the storage, so a run of chunks cannot stand for them.
    for extent in () if record.tiling is not None else record.extents:
        blob = manifest.blobs[extent.blob]
        chunks.append(RecordedChunk(end, end + extent.length, extent.piece, blob.digest, blob.nbytes, extent.offset))
        end += extent.length
    return tuple(chunks)


def state_changed(name: str) -> StateChanged:
    """Return the error for a tensor that was changed while it was being saved."""
    msg = f"{name or 'the state'} was changed while it was being saved; nothing was published"
    return StateChanged(msg, hint="do not step the optimizer or write to tensors until save() has returned")


Key = tuple[str, int, int, int]
"""The name of a source, how many before it have that name, and from where to where."""


class DeviceChunks:
    """The chunks of one save that lie on devices. Its methods may be called from several threads, but for `settle`."""

    def __init__(self, context: Context, run: str, captured: Captured) -> None:
        self.claimed_bytes = 0
        self._context = context
        self._run = run
        on_device = [cast("DeviceSource", source) for source in captured.sources if source.on_device]
        counts: Counter[str] = Counter()
        self._numbers: dict[int, int] = {}
        for source in on_device:
            # Parts of one tensor, as ranks save them, have one name.
            self._numbers[id(source)] = counts[source.name]
            counts[source.name] += 1
        chunk_bytes = context.settings.chunk_bytes
        below = captured.pack_below_bytes(chunk_bytes)
        self._chunks = [
            (source, start, stop) for source in on_device for start, stop in _cuts(source, below, chunk_bytes)
        ]
        self._keys = [self._key(*chunk) for chunk in self._chunks]
        self._before = self._fingerprints()
        # Forgotten until this save has ended well: after one that failed everything is read.
        seen = context.known.device_seen.pop(run, {})
        pairs = zip(self._keys, self._before, strict=True) if self._before else ()
        self._known = {key: seen[key][1] for key, found in pairs if key in seen and seen[key][0] == found}
        self._digests: dict[Key, str] = {}
        self._mutex = threading.Lock()

    def known(self, source: ByteSource, start: int, stop: int) -> str | None:
        """Return the digest that these bytes had when they were last read, if they are the same; else None."""
        return self._known.get(self._key(source, start, stop))

    def claimed(self, source: ByteSource, start: int, stop: int, digest: str) -> None:
        """Bytes are saved by that digest, and were not read."""
        self.read(source, start, stop, digest)
        with self._mutex:
            self.claimed_bytes += stop - start

    def read(self, source: ByteSource, start: int, stop: int, digest: str) -> None:
        """Bytes were read, and have this digest."""
        with self._mutex:
            self._digests[self._key(source, start, stop)] = digest

    def fetched(self, batch: Sequence[ByteSource]) -> list[ByteSource]:
        """Return small sources with those in memory that lie on a device and are not known: read in few transfers."""
        wanted = [i for i, one in enumerate(batch) if one.on_device and self.known(one, 0, one.nbytes) is None]
        if not wanted:
            return [*batch]
        from ckstore.tensors.device.feed import fetch

        found = [*batch]
        for i, data in zip(wanted, fetch([cast("DeviceSource", batch[i]) for i in wanted]), strict=True):
            found[i] = BytesSource(batch[i].name, data)
        return found

    def settle(self) -> None:
        """Keep what was read for the next save; `StateChanged` if what is on the devices was changed meanwhile."""
        after = self._fingerprints()
        if not (self._before and after):
            return
        # What was read lies between two fingerprints: equal ones mean that it is what they are of.
        for key, old, new in zip(self._keys, self._before, after, strict=True):
            if old != new:
                raise state_changed(key[0])
        found = zip(self._keys, self._before, strict=True)
        self._context.known.device_seen[self._run] = {
            key: (old, self._digests[key]) for key, old in found if key in self._digests
        }

    def _key(self, source: ByteSource | DeviceSource, start: int, stop: int) -> Key:
        return source.name, self._numbers.get(id(source), -1), start, stop

    def _fingerprints(self) -> list[bytes]:
        from ckstore.tensors.device.fingerprint import fingerprints

        return fingerprints(self._chunks)


def _cuts(source: DeviceSource, below: int, chunk_bytes: int) -> Iterable[tuple[int, int]]:
    step = chunk_bytes if source.nbytes >= below else max(source.nbytes, 1)
    for start in range(0, source.nbytes, step):
        yield start, min(start + step, source.nbytes)
