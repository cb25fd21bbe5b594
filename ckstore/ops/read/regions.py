"""Read a part of a tensor, either a block or a range of its row-major bytes, from a storage with or without tiles.

A piece can only be checked as a whole. Therefore, if only a part of a piece is requested, the whole piece is read into
separate memory. The last such piece is kept, since the next request often begins in the same piece.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import accumulate
from operator import attrgetter
from typing import Literal, Self

from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer
from ckstore.model.manifest.manifest import Extent, StorageRecord, Tiling
from ckstore.model.manifest.tensor_cuts import Band, Block, Sizes, bands, flat_start, span
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.pieces import Part, PieceReader

# The maximum size of the rows that are read at once for a block of a large tensor. It equals the default chunk size.
WINDOW_BYTES = 32 * 2**20
RANGE_BYTES = 8 * 2**20  # how many bytes are requested at once when a whole storage is read

_start_of = attrgetter("start")


class RegionReader:
    """Reads parts of one storage of an open checkpoint. It must be used by one thread only."""

    def __init__(
        self,
        directory: CheckpointDirectory,
        storage: int,
        name: str,
        *,
        verify: bool = True,  # whether to check the pieces
        pieces: PieceReader | None = None,  # the reader of the pieces; if None, the blob is opened for each piece
    ) -> None:
        self.storage = storage
        self.read_bytes = 0  # the number of bytes that were read from blobs
        self._directory = directory
        self._record: StorageRecord = directory.manifest.storages[storage]
        self.name = name  # the name of the value in the storage, for messages
        tiling = self._record.tiling
        self._bands: list[Band] = [] if tiling is None else bands(tiling.blocks)
        self._verify = verify
        self._pieces = pieces
        self._starts = list(accumulate((extent.length for extent in self._record.extents), initial=0))
        self._kept: tuple[int, memoryview] = (-1, memoryview(b""))

    def block(self, shape: Sizes, wanted: Block, out: memoryview, held: Collection[int] = ()) -> None:
        """Read a block of a tensor into `out`, row-major.

        Args:
            shape: The shape of the tensor, with the last dimension in bytes.
            wanted: The block.
            out: The memory to fill.
            held: The starts of the pieces that `out` already holds. These pieces are not read.
        """
        if not wanted.nbytes:
            return
        tiling = self._record.tiling
        if tiling is not None and tiling.shape == shape:
            self._block_of_tiles(tiling, wanted, out, held)
            return
        if tiling is not None:
            held = ()  # the pieces are not in row-major order, so `held` is ignored, and `held_share` returns "none"
        start = flat_start(shape, wanted)
        if start is not None:
            self.bytes(start, start + wanted.nbytes, out, held)
            return
        self._block_of_rows(shape, wanted, out, held)

    def held_share(self, shape: Sizes, wanted: Block, held: Collection[int]) -> Literal["none", "some", "all"]:
        """Return whether none, some or all of the pieces that `block` needs start at a position in `held`."""
        tiling = self._record.tiling
        if tiling is not None and tiling.shape == shape:
            needed = {self._starts[at] for at, block in enumerate(tiling.blocks) if block.meet(wanted) is not None}
        elif tiling is not None:
            return "none"
        else:
            needed = self._pieces_in(*span(shape, wanted))
        found = needed.intersection(held)
        return "none" if not found else "all" if len(found) == len(needed) else "some"

    def _pieces_in(self, start: int, stop: int) -> set[int]:
        """Return the starts of the pieces that overlap the bytes `start` to `stop`."""
        return {*self._starts[bisect_right(self._starts, start) - 1 : bisect_left(self._starts, stop)]}

    def bytes(self, start: int, stop: int, out: memoryview, held: Collection[int] = ()) -> None:
        """Read the row-major bytes `start` to `stop` of the storage into `out`.

        Pieces that start at a position in `held` are not read, unless the storage is tiled.
        """
        if start == stop:
            return
        if self._record.tiling is not None:
            self._bytes_of_tiles(self._record.tiling, start, stop, out)
            return
        # Use a binary search: a storage of a terabyte has 30,000 pieces, and slices request single pieces repeatedly.
        at = bisect_right(self._starts, start) - 1
        while at < len(self._record.extents) and self._starts[at] < stop:
            low, high = self._starts[at], self._starts[at + 1]
            if low in held:
                at += 1
                continue
            first, last = max(start, low), min(stop, high)
            # A complete piece is read directly into `out`. For a part of a piece, the whole piece is read into separate
            # memory, since a piece is checked as a whole.
            if (first, last) == (low, high) and self._kept[0] != at:
                self._read(self._record.extents[at], out[low - start : high - start])
            else:
                out[first - start : last - start] = self._piece(at)[first - low : last - low]
            at += 1

    def _block_of_rows(self, shape: Sizes, wanted: Block, out: memoryview, held: Collection[int]) -> None:
        """Read whole rows in windows, and copy the block from each window.

        The rows are those of the outermost dimension in which the size of the block is not 1.
        """
        from ckstore.tensors.numpy_leaves import copy_common

        dim = next(i for i, size in enumerate(wanted.sizes) if size != 1)
        inner = shape[dim + 1 :]
        row_bytes = math.prod(inner)
        # Read at least one row at once, since a row is not split even if it is larger than the window.
        rows_at_once = max(1, WINDOW_BYTES // row_bytes)
        before = sum(offset * math.prod(shape[i + 1 :]) for i, offset in enumerate(wanted.offsets[:dim]))
        first, count = wanted.offsets[dim], wanted.sizes[dim]
        for row in range(first, first + count, rows_at_once):
            rows = min(rows_at_once, first + count - row)
            at = before + row * row_bytes
            # Skip a window only if all of its pieces are held, since a window is copied as one block.
            if self._pieces_in(at, at + rows * row_bytes).issubset(held):
                continue
            window = memoryview(bytearray(rows * row_bytes))
            self.bytes(at, at + len(window), window)
            window_block = Block((*wanted.offsets[:dim], row, *(0 for _ in inner)), (*wanted.sizes[:dim], rows, *inner))
            copy_common(window, window_block, out, wanted)

    def _block_of_tiles(self, tiling: Tiling, wanted: Block, out: memoryview, held: Collection[int] = ()) -> None:
        from ckstore.tensors.numpy_leaves import copy_common

        for band in self._bands_in(wanted.offsets[0], wanted.offsets[0] + wanted.sizes[0]):
            for at in band.blocks:
                if tiling.blocks[at].meet(wanted) is not None and self._starts[at] not in held:
                    copy_common(self._piece(at), tiling.blocks[at], out, wanted)

    def _bytes_of_tiles(self, tiling: Tiling, start: int, stop: int, out: memoryview) -> None:
        inner = tiling.shape[1:]
        row_bytes = math.prod(inner)
        for band in self._bands_in(start // row_bytes, -(-stop // row_bytes)):
            low, high = band.start * row_bytes, (band.start + band.rows) * row_bytes
            first, last = max(start, low), min(stop, high)
            whole = Block((band.start, *(0 for _ in inner)), (band.rows, *inner))
            if (first, last) == (low, high):
                self._block_of_tiles(tiling, whole, out[low - start : high - start])
            else:
                data = memoryview(bytearray(high - low))
                self._block_of_tiles(tiling, whole, data)
                out[first - start : last - start] = data[first - low : last - low]

    def _bands_in(self, first: int, stop: int) -> Iterator[Band]:
        """Yield the bands with rows from `first` to `stop`."""
        at = bisect_right(self._bands, first, key=_start_of) - 1
        while at < len(self._bands) and self._bands[at].start < stop:
            yield self._bands[at]
            at += 1

    def unit_around(self, at: int) -> tuple[int, int]:
        """Return the range of row-major bytes around `at` that are read together: a piece, or a band of tiles."""
        if self._record.tiling is None:
            i = bisect_right(self._starts, at) - 1
            return self._starts[i], self._starts[i + 1]
        row_bytes = math.prod(self._record.tiling.shape[1:])
        band = next(self._bands_in(at // row_bytes, at // row_bytes + 1))
        return band.start * row_bytes, (band.start + band.rows) * row_bytes

    def _piece(self, at: int) -> memoryview:
        """Return a piece, and read it unless it is the piece that was read last."""
        if self._kept[0] != at:
            data = memoryview(bytearray(self._record.extents[at].length))
            self._read(self._record.extents[at], data)
            # Keep the piece only after its check, so that the next call does not return a damaged piece.
            self._kept = at, data
        return self._kept[1]

    def _read(self, extent: Extent, out: memoryview) -> None:
        part = Part(extent, out, self.name)
        if self._pieces is not None:  # the owner of this reader reports damage
            self._pieces.read(part)
        else:
            with self._directory.reporting_damage(), PieceReader(self._directory, verify=self._verify) as pieces:
                pieces.read(part)
        self.read_bytes += extent.length


class RangeReader:
    """A context manager that reads ranges of storages in ascending order, one storage at a time, and each piece once.

    A unit (a piece, or a band of tiles) is read and checked as a whole. Bytes before the last range are dropped, so
    memory use is one range and one unit.

    Args:
        directory: An open checkpoint.
        spare: Buffers that earlier readers have released. This reader uses one of them if it is large enough, and
            releases its own buffer there. If None, its buffer is freed.
        past_cache: Whether bytes that are not in the page cache are read directly from the disk.
    """

    def __init__(
        self, directory: CheckpointDirectory, spare: list[memoryview] | None = None, *, past_cache: bool = False
    ) -> None:
        self._directory = directory
        self._pieces = PieceReader(directory, past_cache=past_cache)
        self._region: RegionReader | None = None
        self._spare = spare
        self._buffer = memoryview(b"")
        self._low = self._high = 0

    def begin(self, storage: int) -> None:
        """Set the storage to read."""
        self._region = RegionReader(self._directory, storage, "", pieces=self._pieces)
        self._low = self._high = 0

    def read(self, start: int, stop: int, name: str) -> memoryview:
        """Return the bytes `start` to `stop` of the storage, valid until the next call.

        Raises:
            DamagedBlob: A piece is damaged or missing. The message contains `name`.
        """
        if start == stop or self._region is None:
            return self._buffer[:0]
        self._region.name = name
        if not self._low <= start < self._high:
            # Begin at the start of a unit, since a unit is checked as a whole. Bytes before `start` are not returned.
            self._low = self._high = self._region.unit_around(start)[0]
        while self._high < stop:
            low, high = self._region.unit_around(self._high)
            self._make_room(min(start, self._high), high - low)
            self._region.bytes(low, high, self._buffer[low - self._low : high - self._low])
            self._high = high
        return self._buffer[start - self._low : stop - self._low]

    def parts(self, start: int, stop: int, name: str) -> Iterator[memoryview]:
        """Yield the bytes `start` to `stop` in parts of at most `RANGE_BYTES`.

        A part is valid until the next one is requested.
        """
        for at in range(start, stop, RANGE_BYTES):
            yield self.read(at, min(at + RANGE_BYTES, stop), name)

    def _make_room(self, keep_from: int, nbytes: int) -> None:
        """Make room for `nbytes` after the buffered bytes; buffered bytes before `keep_from` may be dropped."""
        if self._high - self._low + nbytes <= len(self._buffer):
            return
        kept = self._buffer[keep_from - self._low : self._high - self._low]
        if len(kept) + nbytes > len(self._buffer):
            # Allocate enough for a range and a unit, so that the buffer rarely grows. While it grows, the old and the
            # new buffer take memory at the same time.
            wanted_bytes = max(len(kept), RANGE_BYTES) + nbytes
            # The kernel fills new memory with zeros, which can take longer than reading. So a released buffer is used
            # again, and a new one has huge pages.
            self._buffer = memoryview(b"")
            with suppress(IndexError):  # other threads take buffers from the same list
                self._buffer = self._spare.pop() if self._spare is not None else self._buffer
            if len(self._buffer) < wanted_bytes:
                self._buffer = aligned_buffer(-(-wanted_bytes // GRAIN_BYTES) * GRAIN_BYTES)
        # Keep these bytes, so that a piece in two ranges is read and hashed only once.
        self._buffer[: len(kept)] = kept
        self._low = keep_from

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pieces.close()
        if self._spare is not None:
            self._spare.append(self._buffer)
            self._buffer = memoryview(b"")
