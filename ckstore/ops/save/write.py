"""Store the bytes of a captured state: steps 2 and 3 of a save (docs/protocol.md, "save, commit").

Large storages are cut into chunks. Several threads process the chunks, so that their fsyncs run in parallel. A chunk is
hashed, unless its digest is known from an earlier save. If the store has a blob with this digest, the blob is claimed,
which means that it is linked into the staging directory. Otherwise, the chunk is written as a new blob. Small storages
share packs (`ops/save/packing`).

The name of a blob is the digest of exactly the bytes that are written: the bytes are copied from the live tensor to
private memory, and the copy is hashed again. Therefore, if a tensor changes meanwhile, the save fails instead of
storing wrong data.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ckstore.errors import CannotStore, SaveFailed
from ckstore.fs.buffers import aligned_buffer, is_aligned
from ckstore.interpreter import end_overdue_pauses
from ckstore.model.manifest.captured import BytesSource, bytes_of
from ckstore.model.manifest.manifest import BlobRecord, Extent, StorageRecord
from ckstore.ops.call_threads import Workers
from ckstore.ops.save.packing import (
    ALIGNMENT,
    KEY_MARK,
    PART_BYTES,
    PackMemory,
    PackPiece,
    fill_pack,
    place_small,
)
from ckstore.ops.save.recorded_chunks import FingerprintedChunks, RecordedChunk, RecordedSource, state_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ckstore.catalog.queries import Counted, PieceLocation
    from ckstore.model.manifest.captured import ByteSource, Captured, MemorySpace, SourceReader
    from ckstore.model.manifest.lineage import CountedPieces
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context
    from ckstore.ops.save.health import HealthCheck
    from ckstore.ops.save.recheck import Recheck

# With ten calls of `progress` a second, a progress bar moves smoothly, and the calls take almost no time.
_LOOK_S = 0.1
# Hashing less than this takes no longer than starting a thread.
_HASHED_TOGETHER_BYTES = 4 * 2**20
# If a blob of the store has the digest of a chunk but other bytes, the chunk is written behind zeros. More zeros are
# tried only if the result also collides with a blob. Eight collisions in a row are an attack, not an accident.
_MOST_SHIFTS = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StorageLocations:
    """The locations of the storages of a state."""

    # `blobs` and `storages`: as in the manifest.
    blobs: tuple[BlobRecord, ...]
    storages: tuple[StorageRecord, ...]
    logical_bytes: int  # sum of the sizes of the storages
    new_bytes: int  # sizes of the blobs that were written
    reused_bytes: int  # bytes of the storages that needed no writing
    kept_bytes: int = 0  # bytes with unchanged fingerprints, which were not read
    counted: Counted | None = None  # the count of checkpoints from the catalog, if it was queried for small pieces
    found: CountedPieces | None = None  # counts of values that are not finite in each piece; None if not counted


@dataclass(slots=True)
class _Chunk:
    """A chunk, and its location once it is stored.

    `piece` is the digest of the chunk. `blob` is the digest of its blob, which differs from `piece` if the store has
    other bytes with the digest `piece`. `recorded` is the location of the chunk in an earlier checkpoint if its bytes
    are not available.
    """

    source: ByteSource
    start: int
    stop: int
    piece: str = ""
    blob: str = ""
    offset: int = 0
    recorded: RecordedChunk | None = None

    @property
    def length(self) -> int:
        return self.stop - self.start

    def bytes_of(self, begin: int, end: int) -> memoryview:
        """Return the current bytes of the chunk from `begin` to `end`."""
        return bytes_of(self.source, self.start + begin, self.start + end)

    def extent(self, blob_index: Callable[[str, int], int]) -> Extent:
        blob_nbytes = self.offset + self.length if self.recorded is None else self.recorded.blob_nbytes
        return Extent(self.piece, blob_index(self.blob, blob_nbytes), self.offset, self.length)


def store_sources(
    context: Context,
    staging: Staging,  # where the save is prepared
    captured: Captured,  # the state
    recheck: Recheck,  # chooses the reused blobs that are read again
    *,
    compare: bool = False,
    progress: Progress | None = None,
    health: HealthCheck | None = None,
) -> StorageLocations:
    """Put the bytes of every source of a state into `staging`, as links to existing blobs or as new blobs."""
    # Callers set `compare` if another person may have chosen the bytes so that their digest collides with that of other
    # bytes. Existing blobs are then compared byte by byte before they are reused. BLAKE3 is collision-resistant, so
    # with BLAKE3 the comparison would only cost time.
    sources, below = captured.sources, captured.pack_below_bytes(context.settings.chunk_bytes)
    compare = compare and not context.algorithm.collision_resistant
    space = captured.space
    fingerprinted = None if space is None else FingerprintedChunks(context, recheck.run, captured, space)
    writer = _ChunkWriter(context, staging, recheck, fingerprinted, health, compare=compare)
    writer.report_to(progress, sum(source.nbytes for source in sources))
    # Storages of an earlier checkpoint are never packed, whatever their size, because their bytes are not in memory.
    is_cut = [source.nbytes >= below or isinstance(source, RecordedSource) for source in sources]
    small = [i for i, source in enumerate(sources) if source.nbytes and not is_cut[i]]
    try:
        chunked = {i: writer.cut(source) for i, source in enumerate(sources) if is_cut[i]}
        # Start the large chunks before the small sources. While the threads of the chunks wait for the disk, this
        # thread hashes the small sources and queries the catalog.
        writer.start_chunks()
        keys, places, packed_bytes, counted = place_small(
            context,
            staging,
            [sources[i] for i in small],
            writer,
            recheck=recheck,
            compare=compare,
            fingerprinted=fingerprinted,
        )
        # The next two steps need all reused chunks and all possible collisions, and no thread may still write or heal a
        # blob.
        writer.finish()
        writer.recheck_unforeseen()
        writer.part_collisions()
        if fingerprinted is not None:
            fingerprinted.settle()
        blobs, storages = _records(sources, dict(zip(small, keys, strict=True)), places, chunked)
        # The blobs in the manifest must be in the staging directory before it is sealed (law N1 of docs/protocol.md).
        # `complete` may have to read a chunk again, so it precedes `stop`, which frees the transfer buffers.
        writer.complete(blobs)
        found = None if health is None else health.complete(storages)
    # `_StopSignal` only means that another thread failed. The caller needs the error of that thread.
    except _StopSignal as stopped:
        raise writer.first_error or stopped from None
    finally:
        writer.stop()

    recheck.remember(blobs, packs={place.blob for place in places.values()})
    # If other bytes have the digest of a piece, the key of the piece is its digest with a number. Later saves must not
    # reuse such a piece.
    context.known.pieces = {digest: place for digest, place in places.items() if KEY_MARK not in digest}
    logical_bytes = sum(source.nbytes for source in sources)
    written_bytes = packed_bytes + writer.written_bytes
    return StorageLocations(
        blobs=tuple(blobs),
        storages=tuple(storages),
        logical_bytes=logical_bytes,
        new_bytes=sum(staging.written.values()),
        # The written bytes include healed blobs and the zeros in front of colliding chunks, so the difference may be
        # negative.
        reused_bytes=max(0, logical_bytes - written_bytes),
        kept_bytes=0 if fingerprinted is None else fingerprinted.claimed_bytes,
        counted=counted,
        found=found,
    )


def _records(
    sources: Sequence[ByteSource],
    keys: Mapping[int, str],
    places: Mapping[str, PieceLocation],
    chunked: Mapping[int, Sequence[_Chunk]],
) -> tuple[list[BlobRecord], list[StorageRecord]]:
    """Return the blobs and storages of the manifest.

    `keys` has the key in `places` of each small source, and `chunked` has the chunks of each large one. Both are by the
    index of the source.
    """
    index: dict[str, int] = {}
    blobs: list[BlobRecord] = []

    def blob_index(digest: str, nbytes: int) -> int:
        if digest not in index:
            index[digest] = len(blobs)
            blobs.append(BlobRecord(digest, nbytes))
        return index[digest]

    storages = []
    for i, source in enumerate(sources):
        key = keys.get(i)
        if key is not None:
            place = places[key]
            blob = blob_index(place.blob, place.blob_nbytes)
            extents = [Extent(key.partition(KEY_MARK)[0], blob, place.offset, place.length)]
        else:
            extents = [chunk.extent(blob_index) for chunk in chunked.get(i, ())]
        storages.append(StorageRecord(source.nbytes, tuple(extents)))
    return blobs, storages


def collision(name: str) -> CannotStore:
    """Return the error for bytes that were made to collide with other bytes of the store."""
    reason = "its bytes differ from bytes in the store with the same digest, which does not happen by accident"
    hint = "keep files from other people in a store with hash='blake3'"
    return CannotStore(name, reason, hint=hint)


class _StopSignal(Exception):
    """The work was not done because other work of the save failed."""


class _HostReader:
    """Copies byte ranges of sources, which are in host memory or in files, to private memory. See `SourceReader`."""

    def __init__(self, nbytes: int) -> None:
        self._buffer = aligned_buffer(nbytes)

    def parts(self, source: ByteSource, start: int, stop: int, part_bytes: int) -> Iterator[memoryview]:
        """Yield these bytes of a source part by part."""
        copy = self.whole(stop - start)
        for at in range(0, len(copy), part_bytes):
            part = copy[at : at + part_bytes]
            source.read_into(start + at, start + at + len(part), part)
            yield part

    def whole(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` bytes of the last range."""
        return self._buffer[:nbytes]

    def close(self) -> None:
        """Do nothing: the memory is freed with the reader."""


class _ChunkWriter:
    """Threads that hash, claim and write blobs; each has private memory for one part or chunk only."""

    def __init__(
        self,
        context: Context,
        staging: Staging,
        recheck: Recheck,
        fingerprinted: FingerprintedChunks | None,
        health: HealthCheck | None,
        *,
        compare: bool,
    ) -> None:
        self.written_bytes = 0
        self._health = health
        self._compare = compare
        self._fingerprinted = fingerprinted
        self._readers: list[SourceReader] = []
        self._recheck = recheck
        self._unsure: list[_Chunk] = []
        self._unforeseen: list[_Chunk] = []
        self._context = context
        self._staging = staging
        self._pool = Workers(context.threads)
        self._futures: list[Future[Any]] = []
        self._waiting: deque[_Chunk] = deque()
        self._local = threading.local()
        self._mutex = threading.Lock()
        self._seen: set[str] = set()
        # The values are chunks or bytes, since functions would form reference cycles with this writer.
        self._skipped: dict[str, _Chunk | bytes] = {}
        self._memory = PackMemory()
        self._progress: Progress | None = None
        self._all_bytes = 0
        self._done_bytes = 0
        self.first_error: BaseException | None = None
        self._stopped = threading.Event()

    def cut(self, source: ByteSource) -> list[_Chunk]:
        """Cut a large source into chunks that `start_chunks` stores; their locations are known after `complete`."""
        if isinstance(source, RecordedSource):
            # Cut the source as in the earlier checkpoint, which may have used another chunk size, because its blobs can
            # only be claimed as a whole.
            chunks = [_Chunk(source, of.start, of.stop, of.piece, of.blob, of.offset, of) for of in source.chunks]
        else:
            step, end = self._context.settings.chunk_bytes, source.nbytes
            chunks = [_Chunk(source, start, min(start + step, end)) for start in range(0, end, step)]
        self._waiting.extend(chunks)
        return chunks

    def start_chunks(self) -> None:
        """Start threads that take the chunks from a queue, which costs less than a future for each chunk."""
        for _ in range(min(self._context.threads, len(self._waiting))):
            self._submit(self._store_waiting)

    def _store_waiting(self) -> None:
        while not self._stopped.is_set():
            try:
                chunk = self._waiting.popleft()
            # `popleft` is atomic; checking the length first would race with the other threads.
            except IndexError:
                return
            self._store_chunk(chunk)
            with self._mutex:
                self._done_bytes += chunk.stop - chunk.start

    def report_to(self, progress: Progress | None, all_bytes: int) -> None:
        """Make the thread of the save call `progress` while this thread waits for other threads."""
        self._progress, self._all_bytes = progress, all_bytes

    def digests(self, sources: Sequence[ByteSource]) -> list[str]:
        """Return the digests of sources in live memory; several threads hash large amounts of bytes."""
        groups: list[list[ByteSource]] = [[]]
        nbytes = 0
        for source in sources:
            if nbytes >= _HASHED_TOGETHER_BYTES:
                groups.append([])
                nbytes = 0
            groups[-1].append(source)
            nbytes += source.nbytes
        found: list[list[str]] = [[]] * len(groups)
        waiting = deque(range(len(groups)))

        def hash_groups() -> None:
            while True:
                if self._stopped.is_set():
                    raise _StopSignal
                try:
                    i = waiting.popleft()
                except IndexError:
                    return
                digest_of = self._context.algorithm.digest
                found[i] = [digest_of(bytes_of(source, 0, source.nbytes)) for source in groups[i]]

        helpers = [self._submit(hash_groups) for _ in range(min(self._context.threads, len(groups)) - 1)]
        self._guarded(hash_groups)
        for helper in helpers:
            # Do not wait for a helper that has not begun because all threads are storing chunks.
            if not helper.cancel():
                self._pool.result(helper, self._report)
        return [digest for group in found for digest in group]

    def start_pack(self, pieces: Sequence[PackPiece], last: bool) -> Callable[[], str]:  # noqa: FBT001 - as `WritePack` is called
        """Begin to store a pack; return a function that waits for its digest."""
        # While another thread stored the last pack, the caller would only wait. Therefore the caller stores that pack
        # itself, which saves the time to start a thread.
        if not last:
            return partial(self._pool.result, self._submit(self._store_pack, pieces), self._report)
        digest = self._guarded(self._store_pack, pieces)
        return lambda: digest

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._done_bytes, self._all_bytes)

    def finish(self) -> None:
        """Wait for all started work, and report its progress."""
        while wait(self._futures, timeout=_LOOK_S, return_when=FIRST_EXCEPTION).not_done and self.first_error is None:
            self._pool.help_out()
            end_overdue_pauses()
            self._report()
        if self.first_error is not None:
            raise self.first_error
        self._done_bytes = self._all_bytes
        self._report()

    def complete(self, blobs: Sequence[BlobRecord]) -> None:
        """Make the staging directory hold exactly these blobs.

        A blob that one thread left to another thread is stored now, unless the other thread has stored it.

        Raises:
            SaveFailed: A blob is missing, so the checkpoint must not be published.
        """
        wanted = {blob.digest: blob.nbytes for blob in blobs}
        # The staging directory must have exactly the blobs of the manifest (law N1). An unneeded claim would keep a
        # blob that the checkpoint does not name.
        lacking = self._staging.keep_exactly(wanted)
        given_up = self._skipped.keys() & lacking
        for digest in given_up:
            left = self._skipped[digest]
            data = memoryview(left) if isinstance(left, bytes) else self._copy(left.source, left.start, left.stop)[0]
            # The tensor may have changed since it was hashed, but its bytes must match the manifest.
            if self._context.algorithm.digest(data) != digest:
                raise state_changed("")
            self._put(digest, data)
        if given_up:
            lacking = self._staging.keep_exactly(wanted)
        if lacking:
            msg = f"{len(lacking)} blobs in the staging directory are missing or changed, such as {lacking[0]}"
            raise SaveFailed(msg, hint="did another program change the store? save again")

    def stop(self) -> None:
        """Stop the threads after their current blobs, and drop the remaining work."""
        # Set this before stopping the pool, so that no thread takes another chunk and writes it into a directory that
        # is about to be discarded.
        self._stopped.set()
        self._pool.stop()
        self._memory.close()
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        # The traceback of an error refers to this writer. If the writer also referred to the error, the cycle would
        # keep the state in memory.
        self._futures.clear()
        self.first_error = None

    def _submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        future = self._pool.submit(self._guarded, work, *args)
        self._futures.append(future)
        return future

    def _guarded(self, work: Callable[..., T], *args: object) -> T:
        # Queued work also starts after the first failure, but must not change a discarded staging directory.
        if self._stopped.is_set():
            raise _StopSignal
        try:
            return work(*args)
        # Also catch KeyboardInterrupt, since the save must not be published without the work of this thread.
        except BaseException as error:
            with self._mutex:
                self.first_error = self.first_error or error
            self._stopped.set()
            raise

    def _store_chunk(self, chunk: _Chunk) -> None:
        source, start, stop = chunk.source, chunk.start, chunk.stop
        if isinstance(source, RecordedSource) and chunk.recorded is not None:
            self._claim_recorded(source, chunk.recorded)
            return
        if self._fingerprinted is not None and self._claim_known(chunk, self._fingerprinted):
            return
        # The live bytes are hashed in place, so an unchanged chunk costs one pass over memory and no copy
        # (docs/adr/0006).
        live = source.view(start, stop)
        data, digest = self._copy(source, start, stop) if live is None else (live, self._digest(source, live))
        self._context.watch.hashed(len(data))
        # If the digest equals `chunk.piece`, `_claim_known` has already called `is_first` for this chunk, but could not
        # claim the blob.
        is_first = digest == chunk.piece or self.is_first(digest)
        chunk.piece = chunk.blob = digest
        # If the state has two equal chunks, only one thread may handle their blob. A second thread could find a
        # half-written blob and treat it as damaged.
        if not is_first:
            self._skipped[digest] = chunk
            if self._compare:
                self._unsure.append(chunk)
            return
        if self._claim(digest, data):
            if not self._recheck.foresaw(digest):
                self._unforeseen.append(chunk)
            # `part_collisions` decides later, when no thread writes any more, because the difference may be bit rot
            # that another thread is healing now.
            if self._compare and not self._staging.holds(digest, data):
                self._unsure.append(chunk)
            return
        # A `BytesSource` does not change, so its hashed bytes can be written without a copy. A copy would take a core
        # from the training (docs/adr/0014).
        is_fixed = isinstance(source, BytesSource) and is_aligned(data)
        # Writing in parts takes 2 MiB of memory per thread instead of a whole chunk (docs/adr/0009).
        if live is not None and not (is_fixed or self._compare or self._staging.reads_back):
            self._put(digest, data, self._parts(chunk))
            return
        if live is not None and not is_fixed:
            data = self._copy_again(chunk)
        if not self._put(digest, data) and self._compare and not self._staging.holds(digest, data):
            self._unsure.append(chunk)

    def _claim_known(self, chunk: _Chunk, fingerprinted: FingerprintedChunks) -> bool:
        """Claim a chunk whose fingerprint is unchanged since it was last read; return False if it must be read."""
        digest = fingerprinted.known(chunk.source, chunk.start, chunk.stop)
        if digest is None or (self._health is not None and not self._health.knows(chunk.source, digest)):
            return False
        if not self.is_first(digest):
            self._skipped[digest] = chunk
        else:
            chunk.piece = digest
            claimed = self._staging.claim(digest, chunk.length)
            # The blobs that are reread are compared with the live bytes, which reveals a wrong fingerprint.
            if not (claimed and self._recheck.agrees(digest, chunk.bytes_of, believed=True)):
                return False
            if not self._recheck.foresaw(digest):
                self._unforeseen.append(chunk)
        chunk.piece = chunk.blob = digest
        self._context.watch.hashed(chunk.length)
        fingerprinted.claimed(chunk.source, chunk.start, chunk.stop, digest)
        return True

    def _claim_recorded(self, source: RecordedSource, chunk: RecordedChunk) -> None:
        """Claim the blob of a chunk that did not change since an earlier checkpoint.

        Only a sample of such chunks has its current bytes (`RecordedSource.check`). For a chunk in the sample, these
        bytes are compared with the digest in the earlier checkpoint.

        Raises:
            NotUnchanged: The current bytes of the chunk differ.
            SaveFailed: The store no longer has the blob, or the blob is damaged.
        """
        # Compare the bytes first: if they differ, the save must fail even if another chunk has claimed the same blob.
        source.check(chunk, self._context.algorithm)
        self._context.watch.hashed(chunk.stop - chunk.start)
        if not self.is_first(chunk.blob):
            return
        if not (self._staging.claim(chunk.blob, chunk.blob_nbytes) and self._recheck.agrees_whole(chunk.blob)):
            lost = f"this store no longer has the blob {chunk.blob}"
            raise source.missing(self._recheck.damaged.get(chunk.blob, lost))

    def recheck_unforeseen(self) -> None:
        """Reread a share of the reused blobs that the last checkpoint of the run does not have (`ops/save/recheck`)."""
        chunks = {chunk.piece: chunk for chunk in self._unforeseen}
        # All reused blobs are known now, so those that were read longest ago can be chosen (docs/adr/0010).
        self._recheck.add({digest: chunk.length for digest, chunk in chunks.items()}, whole=False)
        for digest, chunk in chunks.items():
            # The right bytes are still available. If the blob is damaged, writing them heals it in every checkpoint.
            believed = self._fingerprinted is not None and self._fingerprinted.covers(chunk.source)
            if not self._recheck.agrees(digest, chunk.bytes_of, believed=believed):
                self._put(digest, self._copy_again(chunk))

    def part_collisions(self) -> None:
        """Compare chunks with blobs of equal digest, and store separately the chunks that differ from these blobs.

        The bytes of such a chunk are stored behind zeros, so that the blob has another digest. The digest of the piece
        does not change.
        """
        for chunk in self._unsure:
            data = self._copy_again(chunk)
            # If the bytes are equal now, another thread was still writing the blob at the first comparison.
            if self._staging.holds(chunk.piece, data):
                continue
            # If the blob matches its digest, it collides with these bytes. Otherwise it is damaged, and the right bytes
            # are written.
            if self._recheck.is_right(chunk.piece, chunk.length):
                self._store_behind_zeros(chunk, data)
            else:
                self._put(chunk.piece, data)

    def _store_behind_zeros(self, chunk: _Chunk, data: memoryview) -> None:
        for count in range(1, _MOST_SHIFTS + 1):
            offset = count * ALIGNMENT
            shifted = memoryview(bytes(offset) + data)
            digest = self._context.algorithm.digest(shifted)
            # If the shifted blob also collides, `holds` returns False, and more zeros are tried.
            written = not self._staging.claim(digest, len(shifted)) and self._put(digest, shifted)
            if written or self._staging.holds(digest, shifted):
                chunk.blob, chunk.offset = digest, offset
                return
        raise collision(chunk.source.name)

    def _store_pack(self, pieces: Sequence[PackPiece]) -> str:
        """Copy pieces to private memory, store them as one blob, and return its digest."""
        memory = self._memory.take(pieces[-1].start + pieces[-1].source.nbytes)
        data, digest = fill_pack(pieces, memory, self._context.algorithm, self._health)
        self._context.watch.hashed(len(data))
        self._context.watch.writing()
        if not self.is_first(digest):
            self._skipped[digest] = bytes(data)  # a copy, since the memory is reused
        elif (self._claim(digest, data, choose=True) or not self._staging.put(digest, data)) and (
            self._compare and not self._staging.holds(digest, data)
        ):
            raise collision("small pieces of the files")
        self._memory.give(memory)
        with self._mutex:
            self._done_bytes += sum(piece.source.nbytes for piece in pieces)
        return digest

    def _claim(self, digest: str, data: memoryview, *, choose: bool = False) -> bool:
        """Claim a blob of the store, and return whether it can be reused.

        A share of such blobs is reread. With `choose`, this call decides whether an unforeseen blob is reread.
        Otherwise, `recheck_unforeseen` decides this later, when all unforeseen blobs are known.
        """
        if not self._staging.claim(digest, len(data)):
            return False
        if choose and not self._recheck.foresaw(digest):
            self._recheck.add({digest: len(data)}, whole=False)
        return self._recheck.agrees(digest, lambda begin, end: data[begin:end])

    def _put(self, digest: str, data: memoryview, parts: Iterator[memoryview] | None = None) -> bool:
        """Write a blob, from `parts` if given; return False if the save uses a blob that another save wrote first."""
        self._context.watch.writing()
        if parts is None:
            written = self._staging.put(digest, data)
        else:
            written = self._staging.put_parts(digest, parts, len(data))
        self._context.watch.written()
        # The blob of another save counts as reused.
        if written:
            with self._mutex:
                self.written_bytes += len(data)
        return written

    def is_first(self, digest: str) -> bool:
        """Whether this is the first call for the blob in this save, so that the caller must handle the blob."""
        with self._mutex:
            # Check and record under one lock, so that of two threads with equal chunks only one is first.
            first = digest not in self._seen
            self._seen.add(digest)
            return first

    def _parts(self, chunk: _Chunk) -> Iterator[memoryview]:
        """Copy a chunk to private memory in parts; each part is valid until the next is requested."""
        if not hasattr(self._local, "part"):
            # Each thread keeps its buffer: new memory for each chunk would cost a page fault per 4 KiB (docs/adr/0006).
            self._local.part = aligned_buffer(PART_BYTES)
        running = self._context.algorithm.start()
        counting = None if self._health is None else self._health.counting(chunk.source, chunk.length)
        for at in range(chunk.start, chunk.stop, PART_BYTES):
            stop = min(at + PART_BYTES, chunk.stop)
            part: memoryview = self._local.part[: stop - at]
            chunk.source.read_into(at, stop, part)
            running.update(part)
            if counting is not None:
                counting.part(part)
            yield part
        # If the written bytes differ from the hashed bytes, verification would report the blob as damaged.
        if self._context.algorithm.digest_of_parts(running) != chunk.piece:
            raise state_changed(chunk.source.name)
        if counting is not None:
            counting.end(chunk.piece)

    def _digest(self, source: ByteSource, live: memoryview) -> str:
        """Return the digest of bytes in memory. If they can be written without a copy, also count nonfinite values."""
        counting = None
        if self._health is not None and isinstance(source, BytesSource):
            counting = self._health.counting_new(source, len(live))
        if counting is None:
            return self._context.algorithm.digest(live)
        running = self._context.algorithm.start()
        for at in range(0, len(live), PART_BYTES):
            part = live[at : at + PART_BYTES]
            running.update(part)
            counting.part(part)
        digest = self._context.algorithm.digest_of_parts(running)
        counting.end(digest)
        return digest

    def _copy(self, source: ByteSource, start: int, stop: int) -> tuple[memoryview, str]:
        """Copy bytes of a source to private memory; return the copy and its digest.

        The copy is valid until the next copy of this thread.
        """
        # Each part is hashed while it is in the processor's cache.
        algorithm = self._context.algorithm
        running = algorithm.start()
        counting = None if self._health is None else self._health.counting_new(source, stop - start)
        reader = self._reader(source.space)
        for part in reader.parts(source, start, stop, PART_BYTES):
            running.update(part)
            if counting is not None:
                counting.part(part)
        digest = algorithm.digest_of_parts(running)
        if counting is not None:
            counting.end(digest)
        if self._fingerprinted is not None:
            self._fingerprinted.read(source, start, stop, digest)
        return reader.whole(stop - start), digest

    def _reader(self, space: MemorySpace | None) -> SourceReader:
        """Return this thread's reader of a memory space; None stands for host memory and files."""
        if not hasattr(self._local, "readers"):
            self._local.readers = {}
        readers: dict[MemorySpace | None, SourceReader] = self._local.readers
        if space not in readers:
            # The buffer holds a whole chunk, which is written from the buffer by direct writes.
            nbytes = self._context.settings.chunk_bytes
            readers[space] = _HostReader(nbytes) if space is None else space.reader(nbytes)
            with self._mutex:
                self._readers.append(readers[space])
        return readers[space]

    def _copy_again(self, chunk: _Chunk) -> memoryview:
        """Copy a chunk to private memory, like `_copy`, and check that it still has its digest."""
        data, copied = self._copy(chunk.source, chunk.start, chunk.stop)
        if copied != chunk.piece:
            raise state_changed(chunk.source.name)
        return data
