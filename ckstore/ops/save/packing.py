"""Pack small tensors into shared blobs: find their pieces in existing packs, and write the rest to new packs.

A pack is kept while one of its pieces is used. To limit dead bytes in packs, a piece is reused only if one checkpoint
or this save uses at least half of its pack. Otherwise the piece is written again to a new pack. Thus the packs of each
checkpoint are at most twice its size (docs/adr/0002-catalog.md).
"""

from __future__ import annotations

import errno
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from ckstore.catalog.queries import Counted, PieceLocation
from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.fs import dirfd_stat, files
from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer
from ckstore.model.digest import Algorithm
from ckstore.model.manifest.captured import ByteSource, copy_of
from ckstore.model.sizes import MEDIUM_BELOW_BYTES, SMALL_BELOW_BYTES
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.staging import Staging
from ckstore.ops.context import Context
from ckstore.ops.save.health import HealthCheck
from ckstore.ops.save.recheck import Recheck
from ckstore.ops.save.recorded_chunks import FingerprintedChunks, state_changed

# This is also the default size of a chunk. With smaller packs, there would be more blobs, and each blob costs a link,
# an fsync and a name in every checkpoint (docs/adr/0009).
PACK_BYTES = 32 * 2**20
_LEAST_PACK_BYTES = 4 * 2**20
# If a save writes one large pack, a later save has to rewrite all of its pieces at once. Then packs take up to 2.17
# times the live bytes. With 20 packs per save, they take up to 1.79 times the live bytes (docs/adr/0003).
_PACKS_AT_LEAST = 16
_BATCH_BYTES = 256 * 2**20
ALIGNMENT = 64
# The size of the parts that are copied, hashed and written. Smaller parts make direct writes slower (docs/adr/0009).
PART_BYTES = 2 * 2**20
# Small pieces are hashed together for the digest of their pack, while the processor's cache still has them.
_HASHED_BYTES = 2**18
# If the packs to check are larger than this in total, a manifest confirms the locations and the packs are not read.
_READ_BYTES = 8 * 2**20
# The largest number of packs in memory at the same time, waiting or being filled.
_MOST_IN_FLIGHT = 6
# This character separates the digest in a key from a number. No digest contains it, so a key with a number cannot be
# mistaken for the name of a blob.
KEY_MARK = "#"


class PackPiece(NamedTuple):
    """A piece of a new pack."""

    key: str  # its digest, perhaps with `KEY_MARK` and a number
    source: ByteSource
    start: int  # its offset in the pack in bytes


WritePack = Callable[[Sequence[PackPiece], bool], Callable[[], str]]
"""Starts to store a pack with these pieces, and returns a function that waits for the digest of the pack.

The second argument is whether the pack is the last one. The last pack may be stored completely before the call returns.
"""


class PackWriter(Protocol):
    """The part of a save that hashes small sources and writes their packs while other threads write chunks."""

    @property
    def start_pack(self) -> WritePack:
        """Start to store a pack."""

    def digests(self, sources: Sequence[ByteSource]) -> list[str]:
        """Return the digests of sources in host memory."""

    def is_first(self, digest: str) -> bool:
        """Whether no other thread of the save handles the blob, so that the caller may claim it."""


def alignment_of(nbytes: int) -> int:
    """Return the alignment in bytes of a piece of this size; large pieces begin at a page, as mapping requires."""
    return GRAIN_BYTES if nbytes >= SMALL_BELOW_BYTES else ALIGNMENT


class PackNeed(NamedTuple):
    """The maximum space that pieces take in new packs."""

    nbytes: int
    pack_count: int


def pack_need(sizes: Iterable[int]) -> PackNeed:
    """Return the maximum space that pieces of these sizes take in new packs."""
    small, medium = 0, 0
    for nbytes in sizes:
        if nbytes < SMALL_BELOW_BYTES:
            small += nbytes + ALIGNMENT
        else:
            medium += nbytes + GRAIN_BYTES
    # A pack is closed when the next piece does not fit, so its unused space is smaller than the largest piece.
    small_count = -(-small // max(1, _small_pack_bytes(small) - SMALL_BELOW_BYTES)) if small > _LEAST_PACK_BYTES else 1
    medium_count = -(-medium // (PACK_BYTES - MEDIUM_BELOW_BYTES))
    return PackNeed(small + medium, (small_count if small else 0) + medium_count)


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment of small pieces in packs."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def fill_pack(
    pieces: Sequence[PackPiece], memory: memoryview, algorithm: Algorithm, health: HealthCheck | None = None
) -> tuple[memoryview, str]:
    """Copy the pieces of a pack into `memory`; return the bytes of the pack and their digest.

    NaN and infinite values in the pieces are counted in `health`.

    Raises:
        StateChanged: A source no longer has the digest in its key.
    """
    whole = algorithm.start()
    end = hashed = 0
    small: list[tuple[ByteSource, str, int, int]] = []
    for key, source, start in pieces:
        digest, nbytes = key.partition(KEY_MARK)[0], source.nbytes
        # Clear the gap, since the memory is reused, and bytes of an earlier pack would give equal packs other digests.
        memory[end:start] = bytes(start - end)
        end = start + nbytes
        # Hash the copy, although the source was hashed before. If the tensor has changed since, its new bytes would
        # otherwise be stored under the old digest. The copy is hashed for the piece and for the pack while it is in the
        # processor's cache.
        if nbytes < SMALL_BELOW_BYTES:
            source.read_into(0, nbytes, memory[start:end])
            found = algorithm.digest(memory[start:end])
            small.append((source, digest, start, nbytes))
            if end - hashed >= _HASHED_BYTES:
                whole.update(memory[hashed:end])
                hashed = end
        else:
            whole.update(memory[hashed:start])
            hashed = end
            running = algorithm.start()
            counting = None if health is None else health.counting(source, nbytes)
            for at in range(0, nbytes, PART_BYTES):
                part = memory[start + at : start + min(at + PART_BYTES, nbytes)]
                source.read_into(at, at + len(part), part)
                running.update(part)
                whole.update(part)
                if counting is not None:
                    counting.part(part)
            found = algorithm.digest_of_parts(running)
            if counting is not None:
                counting.end(digest)
        if found != digest:
            raise state_changed(source.name)
    if health is not None:
        health.found_in_pack(memory, small)
    whole.update(memory[hashed:end])
    return memory[:end], algorithm.digest_of_parts(whole)


_kept: list[memoryview] = []
"""The memory of the last small pack, kept because the kernel takes longer to provide it than to copy a 3 MB pack."""


class PackMemory:
    """Reusable memory for packs; its methods may be called from several threads."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self, nbytes: int) -> memoryview:
        """Return memory of at least `nbytes`."""
        for free in (self._free, _kept):
            # Call `pop` without a check, since another thread may take the memory between a check and the call.
            with suppress(IndexError):
                memory = free.pop()
                if len(memory) >= nbytes:
                    return memory
        grain = GRAIN_BYTES if nbytes <= _LEAST_PACK_BYTES else _LEAST_PACK_BYTES
        return aligned_buffer(-(-nbytes // grain) * grain)

    def give(self, memory: memoryview) -> None:
        """Keep memory for reuse."""
        self._free.append(memory)

    def close(self) -> None:
        """Free the memory, except that of one small pack."""
        _kept[:] = [memory for memory in self._free if len(memory) <= _LEAST_PACK_BYTES][:1] or _kept
        self._free.clear()


class Packer:
    """Plans packs and starts to store them.

    After `finish`, `places` has the location of each piece. Small and medium pieces are in separate packs, so that the
    packs of a frozen base remain in use when only small tensors change.
    """

    def __init__(self, write_pack: WritePack, small_pack_bytes: int, packs_in_flight: int = 2) -> None:
        self.places: dict[str, PieceLocation] = {}
        self._write_pack = write_pack
        self._pack_bytes = {ALIGNMENT: small_pack_bytes, GRAIN_BYTES: PACK_BYTES}
        self._packs_in_flight = packs_in_flight  # the largest number of packs in memory, besides the last one
        self._open: dict[int, list[PackPiece]] = {ALIGNMENT: [], GRAIN_BYTES: []}
        self._waiting: list[tuple[Callable[[], str], list[PackPiece]]] = []

    def add(self, key: str, source: ByteSource, *, apart: bool = False) -> None:
        """Add a piece.

        Args:
            key: The key of the piece, which contains its digest.
            source: The bytes of the piece, at most the size of a pack.
            apart: Whether a gap must precede the piece at the start of a pack, so that the pack has another digest.
        """
        alignment = alignment_of(source.nbytes)
        pieces = self._open[alignment]
        start = -(-_end(pieces) // alignment) * alignment
        if pieces and start + source.nbytes > self._pack_bytes[alignment]:
            self._write(pieces)
            self._open[alignment] = pieces = []
            start = 0
        if apart and not start:
            start = alignment
        pieces.append(PackPiece(key, source, start))

    def _write(self, pieces: list[PackPiece], *, last: bool = False) -> None:
        if len(self._waiting) >= self._packs_in_flight:
            self._wait_for_first()
        self._waiting.append((self._write_pack(pieces, last), pieces))

    def finish(self) -> None:
        """Store the remaining packs, and wait until every pack is stored."""
        left = [pieces for pieces in self._open.values() if pieces]
        for pieces in left:
            self._write(pieces, last=pieces is left[-1])
        while self._waiting:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        wait, pieces = self._waiting.pop(0)
        blob, nbytes = wait(), _end(pieces)
        for key, source, start in pieces:
            self.places[key] = PieceLocation(blob, nbytes, start, source.nbytes)


def _end(pieces: Sequence[PackPiece]) -> int:
    return pieces[-1].start + pieces[-1].source.nbytes if pieces else 0


class SourceLocations(NamedTuple):
    """The locations of small sources."""

    # The key of each source, in order. A key is a digest. If an earlier source has the same digest but other bytes,
    # `KEY_MARK` and a number follow the digest.
    keys: list[str]
    places: dict[str, PieceLocation]  # the location of each piece, by its key
    written_bytes: int  # total size of the pieces that were written
    counted: Counted | None  # the count of checkpoints from the catalog; None if it was not queried


def place_small(
    context: Context,
    staging: Staging,
    sources: Sequence[ByteSource],
    writer: PackWriter,
    *,
    recheck: Recheck,
    compare: bool = False,
    fingerprinted: FingerprintedChunks | None = None,
) -> SourceLocations:
    """Store the bytes of small sources as pieces; with `compare`, also compare the bytes of pieces of equal digest."""
    small_bytes = sum(aligned(source.nbytes) for source in sources if source.nbytes < SMALL_BELOW_BYTES)
    packs_in_flight = max(2, min(context.threads - 2, _MOST_IN_FLIGHT))
    packer = Packer(writer.start_pack, _small_pack_bytes(small_bytes), packs_in_flight)
    keys: list[str] = []
    hits: dict[str, tuple[PieceLocation, ByteSource]] = {}
    seen: dict[str, ByteSource] = {}
    counted: Counted | None = None

    for batch in _batches(sources):
        digests = (writer if fingerprinted is None else fingerprinted).digests(batch)
        sizes = {digest: source.nbytes for digest, source in zip(digests, batch, strict=True) if digest not in seen}
        found, counted = find_pieces(context, sizes)
        for digest, source in zip(digests, batch, strict=True):
            key = _key_of(context, digest, source, seen) if compare else digest
            keys.append(key)
            # Tied or equal small tensors share one piece.
            if key in seen:
                continue
            seen[key] = source
            # Claim the hits at the end, when it is known how much of each pack this save uses.
            if key in found:
                hits[key] = (found[key], source)
            else:
                packer.add(key, source, apart=key != digest)
    places, again = _take_from_packs(context, staging, hits, writer.is_first, recheck=recheck, compare=compare)
    for key in again:
        packer.add(key, hits[key][1], apart=compare)
    packer.finish()
    written_bytes = sum(place.length for place in packer.places.values())
    places.update(packer.places)
    return SourceLocations(keys, places, written_bytes, counted)


def _key_of(context: Context, digest: str, source: ByteSource, seen: Mapping[str, ByteSource]) -> str:
    """Return the key of an earlier source with the same bytes, or a new key if there is no such source."""
    key = digest
    for number in itertools.count(1):
        if key not in seen or _read_again(context, source, digest) == _read_again(context, seen[key], digest):
            break
        key = f"{digest}{KEY_MARK}{number}"
    return key


def _small_pack_bytes(small_bytes: int) -> int:
    """Return the size in bytes of each new pack of small pieces; a large total is divided among several packs."""
    # Several packs need less space in the long run (`_PACKS_AT_LEAST`). A small total becomes one pack, since each pack
    # costs an fsync.
    nbytes = min(PACK_BYTES, max(min(_LEAST_PACK_BYTES, small_bytes), small_bytes // _PACKS_AT_LEAST))
    return -(-nbytes // GRAIN_BYTES) * GRAIN_BYTES


def _batches(sources: Sequence[ByteSource]) -> Iterator[list[ByteSource]]:
    """Cut sources into batches, one for each query of the catalog."""
    batch: list[ByteSource] = []
    nbytes = 0
    for source in sources:
        if nbytes >= _BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(source)
        nbytes += source.nbytes
    if batch:
        yield batch


def _read_again(context: Context, source: ByteSource, digest: str) -> memoryview:
    data = copy_of(source, 0, source.nbytes)
    if context.algorithm.digest(data) != digest:
        raise state_changed(source.name)
    return data


def find_pieces(context: Context, sizes: Mapping[str, int]) -> tuple[dict[str, PieceLocation], Counted | None]:
    """Return the locations of pieces that this process or the catalog knows, and the count of checkpoints.

    The catalog only proposes locations, and `_pieces_are_there` checks them. Impossible locations are not returned. If
    the catalog was not queried, there is no count.

    Args:
        context: The store.
        sizes: The sizes of the pieces in bytes, by digest.
    """
    found = {digest: place for digest in sizes if (place := context.known.pieces.get(digest)) is not None}
    unknown = sizes.keys() - found.keys()
    if not unknown:
        return found, None
    try:
        places, counted = context.catalog.find_pieces(unknown)
    except CatalogUnavailable:  # then the pieces are written again
        return found, None
    for digest, place in places.items():
        nbytes = sizes[digest]
        if place.length == nbytes and place.offset >= 0 and place.offset + nbytes <= place.blob_nbytes:
            found[digest] = place
    return found, counted


def _take_from_packs(
    context: Context,
    staging: Staging,
    hits: dict[str, tuple[PieceLocation, ByteSource]],
    is_mine: Callable[[str], bool],
    *,
    recheck: Recheck,
    compare: bool,
) -> tuple[dict[str, PieceLocation], list[str]]:
    """Claim the packs of which at least half is used, and reread a share of these packs.

    Returns:
        The locations of the pieces in claimed packs, and the pieces to write again.
    """
    by_pack: dict[str, dict[str, PieceLocation]] = defaultdict(dict)
    for digest, (place, _) in hits.items():
        by_pack[place.blob][digest] = place
    shares = {blob: sum(aligned(place.length) for place in pieces.values()) for blob, pieces in by_pack.items()}
    _raise_to_best_shares(context, by_pack, shares)
    sizes = {blob: next(iter(pieces.values())).blob_nbytes for blob, pieces in by_pack.items()}
    worth_it = {blob for blob, size in sizes.items() if 2 * shares[blob] >= size}
    recheck.add({blob: sizes[blob] for blob in worth_it if not recheck.foresaw(blob)}, whole=True)
    if not compare and sum(sizes[blob] for blob in worth_it if _unchecked(context, blob, by_pack[blob])) > _READ_BYTES:
        _learn_from_manifest(context, recheck.run)
    places: dict[str, PieceLocation] = {}
    again: list[str] = []
    for blob, pieces in by_pack.items():
        # The cheap conditions are checked first. The pack is claimed before it is read, so that gc cannot free it in
        # between.
        size = sizes[blob]
        if (
            blob in worth_it
            and is_mine(blob)
            and (
                (
                    staging.claim(blob, size)
                    and recheck.agrees_whole(blob)
                    and _pieces_are_there(context, staging, blob, pieces, hits, compare=compare)
                )
                or _healed(context, staging, blob, size, {digest: hits[digest] for digest in pieces}, recheck)
            )
        ):
            places.update(pieces)
        else:  # if the pack was claimed, the unneeded claim is removed at the end
            again.extend(pieces)
    return places, again


def _raise_to_best_shares(
    context: Context, by_pack: dict[str, dict[str, PieceLocation]], shares: dict[str, int]
) -> None:
    doubtful = [blob for blob, pieces in by_pack.items() if 2 * shares[blob] < next(iter(pieces.values())).blob_nbytes]
    if not doubtful:
        return
    try:
        # If an existing checkpoint uses half of a pack, the pack is kept anyway, so using it adds no dead bytes
        # (docs/adr/0002).
        best = context.catalog.best_shares(doubtful)
    except CatalogUnavailable:  # then the pieces are written again, which is always correct
        return
    for blob, share in best.items():
        shares[blob] = max(shares[blob], share)


def _unchecked(context: Context, blob: str, pieces: Mapping[str, PieceLocation]) -> dict[str, PieceLocation]:
    """Return the pieces of a pack whose locations are known only from the catalog."""
    known = context.known.pieces
    # If a piece has the digest of its blob, the blob consists of this piece only, and the location is certain.
    return {digest: place for digest, place in pieces.items() if known.get(digest) != place and digest != blob}


def _learn_from_manifest(context: Context, run: str) -> None:
    """Remember the locations of pieces from the manifest of the run's last step, which is checked by its digest."""
    newest = max((key for key, _ in context.layout.published(run)), default=None)
    if newest is None:
        return
    try:
        with CheckpointDirectory.at(context.layout.checkpoint(newest), context.layout.hash_prefix) as directory:
            manifest = directory.manifest
    except (OSError, CkstoreError):  # the checkpoint was deleted, is damaged or is in use: then the packs are read
        return
    for storage in manifest.storages:
        for extent in storage.extents:
            blob = manifest.blobs[extent.blob]
            if extent.piece != blob.digest:
                place = PieceLocation(blob.digest, blob.nbytes, extent.offset, extent.length)
                context.known.pieces.setdefault(extent.piece, place)


def _pieces_are_there(
    context: Context,
    staging: Staging,
    blob: str,
    pieces: dict[str, PieceLocation],
    hits: Mapping[str, tuple[PieceLocation, ByteSource]],
    *,
    compare: bool,
) -> bool:
    """Whether a claimed pack holds the pieces at the locations in the catalog."""
    unchecked = pieces if compare else _unchecked(context, blob, pieces)
    if not unchecked:
        return True
    size = next(iter(unchecked.values())).blob_nbytes
    # The catalog is an index that may be wrong: without this check, other bytes at that location would be published as
    # a tensor (docs/adr/0003).
    data = memoryview(files.read_file(staging.path_of(blob), most_bytes=size, is_blob=True))
    for digest, place in unchecked.items():
        found = data[place.offset : place.offset + place.length]
        if len(found) != place.length or context.algorithm.digest(found) != digest:
            return False
        if compare and bytes(found) != _read_again(context, hits[digest][1], digest):
            return False
    return True


def _healed(  # noqa: PLR0917
    context: Context,
    staging: Staging,
    blob: str,
    size: int,
    hits: dict[str, tuple[PieceLocation, ByteSource]],
    recheck: Recheck,
) -> bool:
    """Heal a damaged pack with the pieces of this save; return False if the pack is intact or cannot be healed."""
    if not staging.is_damaged(blob):
        return False
    try:
        data_found = files.read_file(
            staging.path_of(blob), most_bytes=max(size, dirfd_stat.status(staging.path_of(blob)).st_size), is_blob=True
        )
    except OSError as error:
        # EIO means a failing disk sector, and writing the bytes again heals the blob. Other errors do not concern it.
        if error.errno != errno.EIO:
            raise
        data_found = b""  # the pack can then be healed only if this save has all of its bytes
    if context.algorithm.digest(data_found) == blob:
        if blob not in recheck.damaged:  # the pack is intact, but does not hold the wanted pieces
            return False
        staging.put(blob, memoryview(data_found))  # the page cache still has bytes that the disk has lost
        return True
    # Pad a truncated pack with zeros, which are also the bytes of its gaps. The pieces of this save may then complete
    # the pack, and its digest shows whether they do.
    data = memoryview(bytearray(data_found[:size].ljust(size, b"\0")))
    for digest, (place, source) in hits.items():
        if place.offset + place.length > size:
            return False
        data[place.offset : place.offset + place.length] = _read_again(context, source, digest)
    # Write the pack only if all of it is intact, because other checkpoints may need pieces that this save lacks.
    if context.algorithm.digest(data) != blob:
        return False
    staging.put(blob, data)
    return True
