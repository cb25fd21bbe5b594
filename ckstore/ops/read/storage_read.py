"""Read the storages of an open checkpoint into memory. `load.map_memories` maps storages instead of reading them."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from ckstore.codecs.tiles import TILE_BYTES
from ckstore.errors import BadInput, DamagedBlob, InsufficientSpace
from ckstore.fs.host.memory import left
from ckstore.model.names import spellings
from ckstore.model.sizes import SMALL_BELOW_BYTES, size_text
from ckstore.objects.pieces import Memory, Part, PieceReader, by_blob, check, has_file
from ckstore.ops.call_threads import for_each
from ckstore.ops.read.regions import RegionReader
from ckstore.tensors.state_restore import allocate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ckstore.model.manifest.manifest import Extent, LeafKind
    from ckstore.model.reports.progress import Progress
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.read.common_pieces import HeldExtents, OldPieces
    from ckstore.tensors.memory_layout import StorageMemory
    from ckstore.tensors.state_restore import TensorSink

# The maximum number of threads for data in the page cache, which is only copied and hashed. More threads than cores
# would evict each other's data from the processor's caches (docs/adr/0007).
_CORES = len(os.sched_getaffinity(0))
# Fewer bytes than this are copied faster than threads can be started.
_THREAD_FROM_BYTES = 4 * 2**20
# The size of the buffer for streaming. It holds several pieces, so that several threads can read.
STREAM_BYTES = 64 * 2**20
# The alignment of pieces in the buffer. Each piece is used as a tensor, and torch and NumPy read unaligned elements
# slowly or not at all.
_ALIGN_BYTES = 64
# An encoded piece of at least this size is decoded by several threads, since decoding takes longer than any other step.
_STRIPED_BYTES = 4 * 2**20
# For smaller reads, the free memory is not checked, since the kernel's answer takes longer than the read.
_ASK_FROM_BYTES = 8 * 2**20
_SPARE_BYTES = 16 * 2**20  # additional memory for reading: buffers, threads, page tables


class StorageNames:
    """The kind of each storage of a checkpoint, and its name in messages; see `names_of`."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._names: dict[int, str] = {}
        self._kinds: dict[int, LeafKind] = {}
        spelling = spellings(leaf.name for leaf in directory.manifest.leaves)
        for leaf in directory.manifest.leaves:
            self._names.setdefault(leaf.storage, spelling[leaf.name])
            self._kinds.setdefault(leaf.storage, leaf.kind)
        for file in directory.manifest.files:
            for storage in file.storages:
                self._names.setdefault(storage, file.path)

    def name(self, storage: int) -> str:
        """Return the name of the first leaf in a storage, or of the committed file that the storage belongs to."""
        return self._names.get(storage) or "the state"

    def kind(self, storage: int) -> LeafKind:
        """Return the kind of the first leaf in a storage."""
        return self._kinds[storage]


# The references are weak, so that the names of a checkpoint that was not closed do not remain in memory.
_names: weakref.WeakKeyDictionary[CheckpointDirectory, StorageNames] = weakref.WeakKeyDictionary()


def names_of(directory: CheckpointDirectory) -> StorageNames:
    """Return the names of an open checkpoint. They are computed once, since many tensors may be read one by one."""
    found = _names.get(directory)
    if found is None:
        found = _names[directory] = StorageNames(directory)
    return found


def read_storages(
    directory: CheckpointDirectory,
    into: Mapping[int, memoryview | Memory],
    *,
    verify: bool,
    skip: HeldExtents | None = None,
    old: OldPieces | None = None,
    tally: Tally | None = None,
) -> None:
    """Fill each memory with the bytes of its storage. Several threads read the blobs.

    Args:
        directory: An open checkpoint.
        into: Storage -> memory of its size.
        verify: Whether to check the bytes.
        skip: The extents that the memories already hold.
        old: The older pieces that the memories hold at the places of the wanted pieces.
        tally: Counts the bytes that are read, and reports progress.

    Raises:
        DamagedBlob: Some bytes are damaged or missing. The memories may be partly filled.
    """
    with _filling(into.values()):
        records = directory.manifest.storages
        names = names_of(directory)
        parts: list[Part] = []
        for storage, out in into.items():
            if records[storage].tiling is not None:
                continue
            at, has = 0, skip.get(storage, ()) if skip else ()
            for extent in records[storage].extents:
                # With `since=`, bytes that the target holds from the previous checkpoint are not read.
                if at not in has:
                    there = old.get(storage, {}).get(at) if old else None
                    parts.append(Part(extent, out[at : at + extent.length], names.name(storage), there))
                at += extent.length
        for storage, out in into.items():
            # Tiles of ranks are not contiguous in memory, so either all tiles are skipped or none.
            if records[storage].tiling is None or (skip and storage in skip):
                continue
            nbytes = records[storage].nbytes
            whole = out if isinstance(out, memoryview) else memoryview(bytearray(nbytes))
            RegionReader(directory, storage, names.name(storage), verify=verify).bytes(0, nbytes, whole)
            if not isinstance(out, memoryview):
                out.take(whole)
            if tally is not None:
                tally.add(nbytes)
        _read_parts(directory, parts, verify=verify, tally=tally)


def _filling(memories: Iterable[memoryview | Memory]) -> AbstractContextManager[None]:
    """Return the context in which these memories are filled."""
    transferred = [memory for memory in memories if not isinstance(memory, memoryview)]
    return transferred[0].filling(transferred) if transferred else nullcontext()


class Tally:
    """Counts the bytes that a load has read, and reports progress in the thread of the caller."""

    def __init__(self, all_bytes: int, progress: Progress | None) -> None:
        self.done_bytes = 0  # the bytes that were read and, if requested, checked
        self.all_bytes = all_bytes  # the bytes to be read
        self.received_bytes = 0  # the bytes that were downloaded from remotes
        self._progress = progress
        self._mutex = threading.Lock()

    def add(self, nbytes: int) -> None:
        """Count bytes. Any thread may call this method."""
        with self._mutex:
            # A lock is needed, since `+=` is a read and a write, between which another thread may run.
            self.done_bytes += nbytes

    def receive(self, nbytes: int) -> None:
        """Count bytes that were downloaded from remotes. Any thread may call this method."""
        with self._mutex:
            self.received_bytes += nbytes

    def end(self) -> None:
        """Report that all bytes were read."""
        if self._progress is not None:
            self._progress(self.all_bytes, self.all_bytes)

    def say(self) -> None:
        """Report the progress to the caller of the load."""
        if self._progress is not None:
            self._progress(self.done_bytes, self.all_bytes)


def _read_parts(
    directory: CheckpointDirectory, parts: Iterable[Part], *, verify: bool, tally: Tally | None = None
) -> None:
    # Begin with the largest blobs, so that no thread ends long after the others.
    blobs = sorted(by_blob(parts), key=_nbytes, reverse=True)

    def read_blob(of_blob: list[Part]) -> None:
        with PieceReader(directory, verify=verify) as pieces:
            pieces.read_ahead(of_blob)
            pieces.read_all(of_blob, (lambda _: None) if tally is None else tally.add)
            if tally is not None:
                tally.receive(pieces.received_bytes)

    def decode_stripe(stripe: list[Part]) -> None:
        with PieceReader(directory, verify=False) as pieces:
            for part in stripe:
                pieces.read(part)

    def check_part(part: Part) -> None:
        if verify:
            _check_decoded(directory, part)
        if tally is not None:
            tally.add(len(part.out))

    # This context includes all threads, so that the mark of damage is written once, by the thread of the caller.
    with directory.reporting_damage():
        if blobs:
            say = None if tally is None else tally.say
            threads = _threads_for(directory, blobs)
            striped: list[list[Part]] = []
            whole: list[list[Part]] = []
            for of_blob in blobs:
                # Several threads decode one encoded blob if it has a large piece and is decoded into host memory.
                is_striped = (
                    threads > 1
                    and any(len(part.out) >= _STRIPED_BYTES for part in of_blob)
                    and not has_file(directory, of_blob[0].extent)
                    and all(isinstance(part.out, memoryview) for part in of_blob)
                )
                (striped if is_striped else whole).append(of_blob)
            stripes = [stripe for of_blob in striped for part in of_blob for stripe in _stripes(part, threads)]
            for_each(decode_stripe, stripes, threads=threads, say=say)
            for_each(check_part, [part for of_blob in striped for part in of_blob], threads=threads, say=say)
            for_each(read_blob, whole, threads=threads, say=say)


def _check_decoded(directory: CheckpointDirectory, part: Part) -> None:
    """Check a piece that several threads have decoded.

    If the piece is wrong, read it again, which reports or repairs the damage.
    """
    if not isinstance(part.out, memoryview):
        return
    try:
        check(directory, part.extent, part.out, part.what)
    except DamagedBlob:
        with PieceReader(directory) as pieces:
            pieces.read(part)


def _stripes(part: Part, threads: int) -> Iterator[list[Part]]:
    """Cut a piece into stripes for the threads. The digest of the piece is compared after all stripes are decoded."""
    extent, out, what, _ = part
    if not isinstance(out, memoryview):
        return
    # Cut at the borders of tiles, since a tile in two stripes would be decoded twice.
    nbytes = (len(out) // (threads * TILE_BYTES) + 1) * TILE_BYTES
    for at in range(0, len(out), nbytes):
        length = min(nbytes, len(out) - at)
        yield [Part(extent._replace(offset=extent.offset + at, length=length), out[at : at + length], what)]


def _nbytes(parts: Iterable[Part]) -> int:
    return sum(len(part.out) for part in parts)


def stream_storages(
    directory: CheckpointDirectory,
    storages: Iterable[int],
    take: Callable[[int, int, memoryview], object],
    *,
    verify: bool,
    skip: HeldExtents | None = None,
    tally: Tally | None = None,
) -> None:
    """Read storages through one buffer of `STREAM_BYTES`, or of the size of the largest piece if that is larger.

    Args:
        directory: An open checkpoint.
        storages: The storages in the order of reading. None of them may be tiled.
        take: Called with a storage, an offset in it, and bytes that are valid until the call returns.
        verify: Whether to check the bytes before they are passed to `take`.
        skip: The extents that are not read.
        tally: Counts the bytes that are read.
    """
    names = names_of(directory)
    buffer = memoryview(b"")
    window: list[tuple[int, int, Extent, int]] = []
    used = 0

    def flush() -> None:
        nonlocal buffer, used
        # The buffer never shrinks, since memory that was used before is faster than new pages (docs/adr/0007).
        if len(buffer) < used:
            buffer = memoryview(bytearray(used))
        parts = [Part(extent, buffer[place : place + extent.length], names.name(i)) for i, _, extent, place in window]
        _read_parts(directory, parts, verify=verify, tally=tally)
        for storage, at, extent, place in window:
            take(storage, at, buffer[place : place + extent.length])
        window.clear()
        used = 0

    for storage in storages:
        at, has = 0, skip.get(storage, ()) if skip else ()
        for extent in directory.manifest.storages[storage].extents:
            if at in has:
                at += extent.length
                continue
            # Read the window before it would become too large. A piece that is larger than a window is read alone.
            if window and used + extent.length > STREAM_BYTES:
                flush()
            window.append((storage, at, extent, used))
            used += -(-extent.length // _ALIGN_BYTES) * _ALIGN_BYTES
            at += extent.length
    if window:
        flush()


def _threads_for(directory: CheckpointDirectory, blobs: Sequence[Sequence[Part]]) -> int:
    """Return the best number of threads: at most one for each core if the bytes are in the page cache."""
    if sum(map(_nbytes, blobs)) < _THREAD_FROM_BYTES:
        return 1
    with PieceReader(directory) as pieces:
        # Check only the largest blob, which determines how long the load takes (docs/adr/0007).
        return min(directory.threads, _CORES) if pieces.is_cached(blobs[0][0]) else directory.threads


def check_room(directory: CheckpointDirectory, nbytes: int) -> None:
    """Raise if reading this many bytes of an open checkpoint would exceed the memory."""
    # A checkpoint may be small on the disk but large in memory: a tensor of zeros, for example, repeats one chunk.
    if nbytes < _ASK_FROM_BYTES:
        return
    # This is checked before allocating, since a control group kills the process at the first page over the limit.
    found = left()
    if found is not None and nbytes + _SPARE_BYTES > found.nbytes:
        where = directory.manifest.name
        msg = f"reading {where} takes {size_text(nbytes)} of memory, and {found}"
        hint = "select= reads a part of it, mmap=True maps the blobs of the store, slice() reads rows"
        raise InsufficientSpace(msg, hint=hint)


def check_bound(what: str, nbytes: int, max_bytes: int | None, less: str) -> None:
    """Raise if more bytes would be read than the caller allows, before anything is allocated."""
    # A hostile checkpoint with a few bytes on the disk can describe terabytes of zeros in memory.
    if max_bytes is not None and type(max_bytes) is not int:
        raise BadInput(f"max_bytes must be a number of bytes, got {max_bytes!r}")
    if max_bytes is not None and nbytes > max_bytes:
        msg = f"{what} loads as {size_text(nbytes)} ({nbytes} bytes), which is more than max_bytes={max_bytes}"
        raise InsufficientSpace(msg, hint=f"{less}, or raise max_bytes if you trust its maker")


def read_memories(
    directory: CheckpointDirectory, storages: Iterable[int], *, verify: bool, tally: Tally | None = None
) -> dict[int, StorageMemory]:
    """Read storages into new memory."""
    names = names_of(directory)
    records = directory.manifest.storages
    storages = list(storages)
    # A damaged or hostile manifest may claim petabytes, whose allocation would crash the process.
    check_room(directory, sum(records[i].nbytes for i in storages))
    memories = {i: allocate(names.kind(i), records[i].nbytes) for i in storages}
    read_storages(directory, {i: memory.view for i, memory in memories.items()}, verify=verify, tally=tally)
    return memories


def read_to_sink(
    directory: CheckpointDirectory, storages: Iterable[int], sink: TensorSink, *, verify: bool, tally: Tally
) -> dict[int, StorageMemory]:
    """Read large torch storages directly into memory that a sink, such as a device, allocates.

    Storages for which the sink allocates no memory are not read.
    """
    names = names_of(directory)
    records = directory.manifest.storages
    sizes = {
        i: records[i].nbytes
        for i in storages
        if records[i].nbytes >= SMALL_BELOW_BYTES and records[i].tiling is None and names.kind(i) == "torch"
    }
    memories = sink.allocate(sizes) if sizes else {}
    if memories:
        read_storages(directory, memories, verify=verify, tally=tally)
    return {i: memory.storage() for i, memory in memories.items()}


def wrong_memories(directory: CheckpointDirectory, memories: Mapping[int, StorageMemory]) -> list[int]:
    """Return the storages whose memory holds wrong bytes. If they are large in total, several threads check them."""
    names = names_of(directory)
    wrong: list[int] = []

    def check_storage(storage: int) -> None:
        at = 0
        for extent in directory.manifest.storages[storage].extents:
            try:
                check(directory, extent, memories[storage].view[at : at + extent.length], names.name(storage))
            except DamagedBlob:
                wrong.append(storage)
                return
            at += extent.length

    # Begin with the largest, so that no thread ends long after the others.
    largest_first = sorted(memories, key=lambda storage: len(memories[storage].view), reverse=True)
    all_bytes = sum(len(memory.view) for memory in memories.values())
    for_each(check_storage, largest_first, threads=directory.threads if all_bytes >= _THREAD_FROM_BYTES else 1)
    return wrong
