"""Access the bytes of pieces: read them into memory, map them, or share them with a file of the caller.

Callers need not know whether a blob is plain, encoded or only on a remote.
"""

from __future__ import annotations

import mmap as _mmap
import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, NamedTuple, Protocol, Self

from ckstore.codecs.tiles import TILE_BYTES
from ckstore.errors import DamagedBlob
from ckstore.fs import direct, files, mapping, reflink
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import Extent, Manifest
from ckstore.model.manifest.stored import OldPiece
from ckstore.objects.checkpoints import UNREADABLE, AbsentPieces, CheckpointDirectory, Unreadable
from ckstore.objects.encoded import Decoder

_PART_BYTES = 2**20  # a part of this size is hashed while it is in the processor's cache
_UNUSED_BYTES = 4096  # this many bytes between two pieces are read and ignored, instead of making another call
_GROUP_MOST = 256  # small pieces that one call reads; with the bytes between them, it may fill 1,024 buffers


class Memory(Protocol):
    """Memory that is filled by transfers, such as the memory of a GPU, or a part of such memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> Memory: ...

    def windows(self) -> Iterator[memoryview]:
        """Yield the memory in consecutive windows. The caller fills each one before it requests the next."""

    def take(self, data: memoryview) -> None:
        """Fill all of the memory with these bytes."""

    def filling(self, memories: Any, /) -> AbstractContextManager[None]:
        """Return a context in which these memories, of the same kind as this one, can be filled."""


class Part(NamedTuple):
    """A piece to read."""

    extent: Extent  # the piece
    out: memoryview | Memory  # the memory to fill, of the length of the piece
    what: str  # the name of the value to which the piece belongs, for messages
    old: OldPiece | None = None  # the piece that `out` holds now, or None if it is unknown


def by_blob(parts: Iterable[Part]) -> list[list[Part]]:
    """Return parts grouped by blob. The parts of each blob are sorted by offset."""
    # In this order, a disk is read sequentially, and each blob is opened once.
    found: dict[int, list[Part]] = defaultdict(list)
    for part in parts:
        found[part.extent.blob].append(part)
    return [sorted(of_blob, key=lambda part: part.extent.offset) for of_blob in found.values()]


class PieceReader:
    """A context manager that reads pieces of an open checkpoint one after another. For one thread only.

    Up to `open_blobs` blobs remain open between pieces, because several small pieces share a blob. `before_each` is
    called before each MiB, and ends the reading if it raises. With `past_cache`, bytes that are not in the page cache
    are read directly from the disk, if the memory is aligned.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        *,
        verify: bool = True,
        open_blobs: int = 1,
        before_each: Callable[[], None] | None = None,
        past_cache: bool = False,
    ) -> None:
        self._directory = directory
        self._past_cache = past_cache
        self._verify = verify
        self._open_most = open_blobs
        self._before_each = before_each
        self._open: OrderedDict[int, int | None] = OrderedDict()
        self._decoder: Decoder | None = None
        self._absent: AbsentPieces | None = None  # created when a blob is missing locally
        # Index of a blob that is damaged or missing -> its bytes from another copy.
        self._rescued: OrderedDict[int, memoryview] = OrderedDict()
        self._repaired: set[str] = set()  # the digests of files whose repair was requested

    def read(self, part: Part) -> None:
        """Read a piece into the memory of a part, and check it. An error about damage names the value of the part.

        A damaged or missing blob is repaired if a remote of the store has a good copy.
        """
        while part.extent.blob not in self._rescued:
            try:
                self._read_here(part)
            except UNREADABLE as error:
                self._rescue(part.extent.blob, error)
            else:
                return
        self._take(part, self._rescued[part.extent.blob])

    def read_all(self, parts: Sequence[Part], done: Callable[[int], None]) -> None:
        """Read the parts of one blob in the order of their offsets, like `read`.

        Neighboring small pieces are read by one call, since a call for each would take longer than their bytes. `done`
        is called with numbers of bytes that were read.
        """
        for group in _groups(parts):
            for part in self._read_together(group) if len(group) > 1 else group:
                self.read(part)
            done(sum(len(part.out) for part in group))

    def _read_together(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Read a group of pieces by one call, and return the parts that `read` must read."""
        start, blob = parts[0].extent.offset, parts[0].extent.blob
        try:
            is_plain = blob not in self._rescued and has_file(self._directory, parts[0].extent)
            fd = self._descriptor(parts[0].extent, parts[0].what) if is_plain else None
        except UNREADABLE:  # `read` repairs the blob or raises the error again
            return parts
        if fd is None:
            return parts
        buffers, at, unused = list[memoryview](), start, memoryview(bytearray(_UNUSED_BYTES))
        for extent, out, _, _ in parts:
            if not isinstance(out, memoryview):  # transfers fill it
                return parts
            if extent.offset > at:
                buffers.append(unused[: extent.offset - at])
            buffers.append(out)
            at = extent.offset + extent.length
        self._begin_part()
        if not files.read_into_many(fd, start, buffers, at - start):
            return parts
        if not self._verify:
            return ()
        digest = algorithm_of(parts[0].extent.piece).digest
        return [part for part in parts if digest(part.out) != part.extent.piece]  # type: ignore[arg-type]

    def _rescue(self, index: int, error: Unreadable) -> None:
        """Repair the file that an error is about, or read its blob into memory. Otherwise, raise the error."""
        if self._directory.rescue is None:
            raise error
        # Each file is repaired only once, even if it is still damaged afterwards.
        file = error.blob if isinstance(error, DamagedBlob) else ""
        first = file not in self._repaired
        self._repaired.add(file)
        data = self._directory.rescue(self._directory, error, self._directory.manifest.blobs[index], first=first)
        self.close()  # close the damaged files, so that the repaired ones are opened
        if data is not None:
            self._rescued[index] = data

    def _take(self, part: Part, whole: memoryview) -> None:
        """Fill the memory of a part from a whole blob in memory, whose digest was checked."""
        found = whole[part.extent.offset : part.extent.offset + part.extent.length]
        if self._verify:
            _compare(self._directory, part.extent, algorithm_of(part.extent.piece).digest(found), part.what)
        if isinstance(part.out, memoryview):
            part.out[:] = found
        else:
            part.out.take(found)

    def _read_here(self, part: Part) -> None:
        extent, out, what, old = part
        is_decoded = not has_file(self._directory, extent)
        fd = -1 if is_decoded else self._descriptor(extent, what)
        if fd is None:
            memory = out if isinstance(out, memoryview) else memoryview(bytearray(len(out)))
            try:
                self._absent_pieces().read_right(extent, old if memory is out else None, memory, what, self._begin_part)
            except UNREADABLE:
                # A pull may have restored the blob meanwhile and removed the record of the remotes, so try the local
                # file again.
                del self._open[extent.blob]
                fd = self._descriptor(extent, what)
                if fd is None:
                    raise
            else:
                if not isinstance(out, memoryview):
                    out.take(memory)
                return
        blob = self._directory.manifest.blobs[extent.blob].digest
        subject = f"{self._directory.path}: blob {blob} of {what}"
        algorithm = algorithm_of(extent.piece)
        running = algorithm.start()
        # Each check makes the kernel read some pages into the cache. So only one page is checked, and a random one. The
        # page of an earlier check is cached, although the rest of the piece may not be.
        past_cache = (
            self._past_cache
            and not is_decoded
            and not files.is_cached(fd, extent.offset + int.from_bytes(os.urandom(8)) % max(1, extent.length))
        )
        try:
            # Read and hash one part after another instead of in two passes over the whole piece (docs/adr/0006).
            at = 0
            for some in _windows(out):
                self._begin_part()
                if is_decoded:
                    self._decoder = self._decoder or Decoder(self._directory)
                    self._decoder.read(blob, extent.offset + at, some, what)
                else:
                    start = extent.offset + at
                    done = direct.read_past_cache(fd, start, some) if past_cache else 0
                    files.read_into(fd, start + done, some[done:], subject)
                if self._verify:
                    running.update(some)
                at += len(some)
        except DamagedBlob as error:
            error.blob, error.names = error.blob or blob, (what,)
            raise
        if self._verify:
            _compare(self._directory, extent, algorithm.digest_of_parts(running), what)

    @property
    def received_bytes(self) -> int:
        """The number of bytes that were downloaded from remotes so far."""
        return 0 if self._absent is None else self._absent.received_bytes

    def _absent_pieces(self) -> AbsentPieces:
        """Return the reader for pieces of blobs that are missing locally. It is created once."""
        if self._absent is None:
            self._absent = self._directory.absent_pieces()
        return self._absent

    def share(self, part: Part, target: int, target_offset: int) -> bool | None:
        """Share the blocks of a piece with a file (reflink), without checking its bytes.

        Returns:
            Whether the blocks are shared. None if the piece is encoded or does not begin and end at block borders. Such
            a piece must be copied on any filesystem.
        """
        extent = part.extent
        if not has_file(self._directory, extent):
            return None
        ends = extent.offset + extent.length == self._directory.manifest.blobs[extent.blob].nbytes
        block = reflink.BLOCK_BYTES
        # Filesystems share only whole blocks, except for the last block of a file.
        if extent.offset % block or target_offset % block or not (ends or extent.length % block == 0):
            return None
        fd = None if extent.blob in self._rescued else self._descriptor(extent, part.what)
        if fd is None:
            return False
        return reflink.try_share(fd, extent.offset, extent.length, target, target_offset)

    def is_cached(self, part: Part) -> bool:
        """Whether the page cache has the beginning of a piece's blob."""
        # Decoding is limited by the processor, like copying from the page cache, so encoded blobs count as cached.
        if not has_file(self._directory, part.extent):
            return True
        try:
            fd = self._descriptor(part.extent, part.what)
        except DamagedBlob:  # reading the piece reports or repairs the damage
            return False
        return fd is not None and files.is_cached(fd, 0)

    def read_ahead(self, parts: Sequence[Part]) -> None:
        """Ask the kernel to read the parts of one blob ahead, in the order in which they will be read."""
        # On a local disk, no request is made: Linux begins with a small read-ahead, and increases the read-ahead and
        # the size of pages as reading continues. A request for the whole range would create pages of 4 KiB, which take
        # more processor time, now and when they are mapped (docs/adr/0007-loads.md). On a network filesystem, each
        # reply takes time, so the whole range is requested, unless most of it is not needed.
        if not has_file(self._directory, parts[0].extent):
            return
        try:
            fd = self._descriptor(parts[0].extent, parts[0].what)
        except DamagedBlob:  # reading the piece reports or repairs the damage
            return
        if fd is None:
            self._absent_pieces().expect([part.extent for part in parts])
            return
        start = parts[0].extent.offset
        stop = max(part.extent.offset + part.extent.length for part in parts)
        first_is_cached = files.is_cached(fd, start)  # always make this call: it starts the read of the first byte
        if files.on_local_disk(fd) or (first_is_cached and files.is_cached(fd, stop - 1)):
            return
        # If less than half of the range is needed, reading all of it would take longer than separate requests.
        if 2 * sum(part.extent.length for part in parts) >= stop - start:
            files.read_ahead(fd, start, stop - start)

    def close(self) -> None:
        """Close the open blobs."""
        self._rescued.clear()
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None
        while self._open:
            _close(self._open.popitem()[1])

    def _begin_part(self) -> None:
        if self._before_each is not None:
            self._before_each()

    def _descriptor(self, extent: Extent, what: str) -> int | None:
        """Return the descriptor of a piece's blob, or None if the blob is remote-only."""
        # The least recently used blob is closed first, because neighboring small pieces are in one pack.
        if extent.blob in self._open:
            self._open.move_to_end(extent.blob)
            return self._open[extent.blob]
        # Close a blob before opening the next one, because the process may be at its limit of descriptors.
        while len(self._open) >= self._open_most:
            _close(self._open.popitem(last=False)[1])
        fd = self._open[extent.blob] = self._directory.open_local(self._directory.manifest.blobs[extent.blob], what)
        return fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def has_file(directory: CheckpointDirectory, extent: Extent) -> bool:
    """Whether a file contains the bytes of a piece in plain form."""
    manifest = directory.manifest
    return manifest.form.is_plain or manifest.form.has_file(manifest.blobs[extent.blob].digest)


def read_unless_file(directory: CheckpointDirectory, digest: str, start: int, out: memoryview, what: str) -> bool:
    """Fill `out` with unchecked bytes of an encoded blob. If the blob has a plain file, do nothing and return False."""
    form = directory.manifest.form
    if form.is_plain or form.has_file(digest):
        return False
    with Decoder(directory) as decoder:
        # Decode tile by tile, so that the bases are not decoded completely into memory.
        for at in range(0, len(out), TILE_BYTES):
            decoder.read(digest, start + at, out[at : at + TILE_BYTES], what)
    return True


def extents_of(manifest: Manifest) -> list[list[Extent]]:
    """Return the pieces in each blob of a manifest, without duplicates, in the order of their offsets."""
    found: list[set[Extent]] = [set() for _ in manifest.blobs]
    for storage in manifest.storages:
        for extent in storage.extents:
            found[extent.blob].add(extent)
    return [sorted(extents, key=lambda extent: extent.offset) for extents in found]


def why_not_right(directory: CheckpointDirectory, extents: Iterable[Extent], before_each: Callable[[], None]) -> str:
    """Compare pieces with their digests. Return the problem of the first damaged piece, or "" if all are intact."""
    with PieceReader(directory, before_each=before_each) as pieces:
        for extent in extents:
            try:
                pieces.read(Part(extent, memoryview(bytearray(extent.length)), "a piece"))
            except DamagedBlob as error:
                return error.message
    return ""


def _groups(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Cut the sorted parts of one blob into groups that one call can read, of at most `_PART_BYTES`."""
    group: list[Part] = []
    start = stop = 0
    for part in parts:
        extent = part.extent
        follows = stop <= extent.offset <= stop + _UNUSED_BYTES and extent.offset + extent.length <= start + _PART_BYTES
        if group and not (follows and len(group) < _GROUP_MOST):
            yield group
            group = []
        if not group:
            start = extent.offset
        group.append(part)
        stop = extent.offset + extent.length
    if group:
        yield group


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def check(directory: CheckpointDirectory, extent: Extent, data: memoryview, what: str) -> None:
    """Compare bytes in memory with the digest of their piece."""
    _compare(directory, extent, algorithm_of(extent.piece).digest(data), what)


def _windows(out: memoryview | Memory) -> Iterator[memoryview]:
    if not isinstance(out, memoryview):
        yield from out.windows()
        return
    for at in range(0, len(out), _PART_BYTES):
        yield out[at : at + _PART_BYTES]


def _compare(directory: CheckpointDirectory, extent: Extent, found: str, what: str) -> None:
    if found != extent.piece:
        blob = directory.manifest.blobs[extent.blob].digest
        msg = (
            f"{what} of {directory.manifest.name} is damaged: bytes {extent.offset} to "
            f"{extent.offset + extent.length} of blob {blob} have the digest {found}, wanted {extent.piece}"
        )
        hint = "an older checkpoint may be whole; saving the same bytes again heals it"
        raise DamagedBlob(msg, hint=hint, blob=blob, names=(what,))


def blob_of(directory: CheckpointDirectory, extents: Sequence[Extent]) -> str:
    """Return the digest of the plain blob that consists exactly of these pieces, or "" if there is no such blob."""
    if len(extents) != 1:
        return ""
    blob = directory.manifest.blobs[extents[0].blob]
    if not has_file(directory, extents[0]):
        return ""
    return "" if extents[0].offset or extents[0].length != blob.nbytes else blob.digest


class PieceMaps:
    """Maps storages copy-on-write, without checking their bytes.

    A storage is given as the list of its pieces. Storages of one piece must be mapped in the order of `place`. Storages
    in one pack share a mapping of the pack. Equal storages have the same position in the blobs, but a write to one
    storage must not change another. Therefore no two storages share mapped memory.
    """

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._directory = directory
        self._blob, self._whole = -1, memoryview(b"")
        self._end = 0

    @staticmethod
    def place(extents: Sequence[Extent]) -> tuple[int, int]:
        """Return the sort key of a storage for the order of mapping."""
        return (extents[0].blob, extents[0].offset) if len(extents) == 1 else (-1, 0)

    def map(self, extents: Sequence[Extent], what: str) -> memoryview | None:
        """Return separate memory for the pieces of a storage, or None if the storage cannot be mapped.

        A storage cannot be mapped if it is encoded, is damaged, has several pieces that are not whole pages, or
        overlaps a storage in a pack that is already mapped.
        """
        # A small storage that is already mapped is not mapped again, because a process can have only a limited number
        # of mappings.
        if not all(has_file(self._directory, extent) for extent in extents):
            return None
        try:
            return self._map(extents, what)
        except UNREADABLE:  # the caller reads the storage into memory, which repairs it or raises the error again
            return None

    def _map(self, extents: Sequence[Extent], what: str) -> memoryview | None:
        if len(extents) != 1:
            # A page of a mapping must begin at a page of the file.
            pages = all(e.offset == 0 and (e is extents[-1] or e.length % _mmap.PAGESIZE == 0) for e in extents)
            return self._side_by_side(extents, what) if extents and pages else None
        (extent,) = extents
        if extent.blob != self._blob:
            self._blob, self._whole, self._end = extent.blob, self._map_blob(extent, what), 0
        # Do not map a range that is already mapped for another storage: a write to one would change the other.
        if extent.offset >= self._end:
            self._end = extent.offset + extent.length
            return self._whole[extent.offset : self._end]
        whole = extent.length == self._directory.manifest.blobs[extent.blob].nbytes
        return self._map_blob(extent, what) if whole else None

    def _map_blob(self, extent: Extent, what: str) -> memoryview:
        blob = self._directory.manifest.blobs[extent.blob]
        # `whole` checks the size: an access to a page beyond the end of a short file would kill the process (SIGBUS).
        fd = self._directory.open_blob(blob, what, whole=True)
        try:
            return mapping.map_file(fd, blob.nbytes)
        finally:
            os.close(fd)

    def _side_by_side(self, extents: Sequence[Extent], what: str) -> memoryview:
        """Map whole blobs next to each other. Only one blob is open at a time, because there may be thousands."""

        def parts() -> Generator[mapping.FilePart]:
            for extent in extents:
                fd = self._directory.open_blob(self._directory.manifest.blobs[extent.blob], what, whole=True)
                try:
                    yield mapping.FilePart(fd, extent.length)
                finally:
                    os.close(fd)

        # Close the generator even after an error. Otherwise, the traceback of the error would keep a file open.
        with closing(parts()) as found:
            return mapping.map_side_by_side(found, sum(extent.length for extent in extents))
