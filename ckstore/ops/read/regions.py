"""Read a part of a tensor: a block of it, or some of its row-major bytes, however it is stored.

A piece can only be checked whole. So a piece of which only a part is wanted is read into memory of its own; the last
one is kept, since what is asked for next often begins where it ends.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from ckstore.model.manifest.tiles import Block, bands, flat_start

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Extent, StorageRecord, Tiling
    from ckstore.model.manifest.tiles import Sizes
    from ckstore.objects.checkpoints import CheckpointDirectory

WINDOW_BYTES = 32 * 2**20


class RegionReader:
    """Reads parts of one storage of an open checkpoint. Not for several threads.

    Attributes:
        storage: Which one.
        read_bytes: How many bytes were read from blobs.
    """

    def __init__(self, directory: CheckpointDirectory, storage: int, what: str, *, verify: bool = True) -> None:
        self.storage = storage
        self.read_bytes = 0
        self._directory = directory
        self._record: StorageRecord = directory.manifest.storages[storage]
        self._what = what
        self._verify = verify
        self._starts = list(accumulate((extent.length for extent in self._record.extents), initial=0))
        self._kept: tuple[int, memoryview] = (-1, memoryview(b""))

    def block(self, shape: Sizes, wanted: Block, out: memoryview) -> None:
        """Read a block of the tensor with this shape, the last dimension in bytes, into `out`, row-major.

        Raises:
            DamagedBlob: A piece is damaged or missing.
        """
        if not wanted.nbytes:
            return
        tiling = self._record.tiling
        if tiling is not None:
            self._block_of_tiles(tiling, wanted, out)
            return
        start = flat_start(shape, wanted)
        if start is not None:
            self.bytes(start, start + wanted.nbytes, out)
            return
        self._block_of_rows(shape, wanted, out)

    def bytes(self, start: int, stop: int, out: memoryview) -> None:
        """Read the row-major bytes `start` to `stop` of the storage into `out`.

        Raises:
            DamagedBlob: As `block`.
        """
        if self._record.tiling is not None:
            self._bytes_of_tiles(self._record.tiling, start, stop, out)
            return
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self._record.extents) and self._starts[at] < stop:
            low, high = self._starts[at], self._starts[at + 1]
            first, last = max(start, low), min(stop, high)
            if (first, last) == (low, high) and self._kept[0] != at:
                self._read(self._record.extents[at], out[low - start : high - start])
            else:
                out[first - start : last - start] = self._piece(at)[first - low : last - low]
            at += 1

    def _block_of_rows(self, shape: Sizes, wanted: Block, out: memoryview) -> None:
        """Read whole rows of the outermost dimension that has several, a window at a time; take the block of each."""
        from ckstore.tensors.regions import copy_common

        dim = next(i for i, size in enumerate(wanted.sizes) if size != 1)
        inner = shape[dim + 1 :]
        row_bytes = math.prod(inner)
        rows_at_once = max(1, WINDOW_BYTES // row_bytes)
        before = sum(offset * math.prod(shape[i + 1 :]) for i, offset in enumerate(wanted.offsets[:dim]))
        first, count = wanted.offsets[dim], wanted.sizes[dim]
        for row in range(first, first + count, rows_at_once):
            rows = min(rows_at_once, first + count - row)
            window = memoryview(bytearray(rows * row_bytes))
            at = before + row * row_bytes
            self.bytes(at, at + len(window), window)
            there = Block((*wanted.offsets[:dim], row, *(0 for _ in inner)), (*wanted.sizes[:dim], rows, *inner))
            copy_common(window, there, out, wanted)

    def _block_of_tiles(self, tiling: Tiling, wanted: Block, out: memoryview) -> None:
        from ckstore.tensors.regions import copy_common

        for at, block in enumerate(tiling.blocks):
            if block.meet(wanted) is not None:
                copy_common(self._piece(at), block, out, wanted)

    def _bytes_of_tiles(self, tiling: Tiling, start: int, stop: int, out: memoryview) -> None:
        inner = tiling.shape[1:]
        row_bytes = math.prod(inner)
        for row, rows in bands(tiling.blocks):
            low, high = row * row_bytes, (row + rows) * row_bytes
            first, last = max(start, low), min(stop, high)
            if first < last:
                band = memoryview(bytearray(high - low)) if (first, last) != (low, high) else out[low - start :]
                whole = Block((row, *(0 for _ in inner)), (rows, *inner))
                self._block_of_tiles(tiling, whole, band[: high - low])
                out[first - start : last - start] = band[first - low : last - low]

    def _piece(self, at: int) -> memoryview:
        """Return a piece, which is read unless it is the one that was read last."""
        if self._kept[0] != at:
            data = memoryview(bytearray(self._record.extents[at].length))
            self._read(self._record.extents[at], data)
            self._kept = at, data
        return self._kept[1]

    def _read(self, extent: Extent, out: memoryview) -> None:
        directory = self._directory
        blob = directory.manifest.blobs[extent.blob].digest
        with directory.reporting_damage(), directory.open_blob(blob, self._what) as fd:
            directory.read_extent(extent, out, fd=fd, what=self._what, verify=self._verify)
        self.read_bytes += extent.length
