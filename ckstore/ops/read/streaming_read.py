"""Read ranges of a storage in order, with one buffer, however large storage and pieces are; every byte is checked.

A piece can only be checked whole, so it is read whole, once for all ranges of it that are asked for by rising start.
Bytes are handed out before their piece has been read to its end: they may only be relied on after `finish`.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING, Self

from ckstore.errors import DamagedBlob
from ckstore.fs import files
from ckstore.model.digest import RunningDigest, algorithm_of
from ckstore.ops.read.regions import RegionReader

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Extent
    from ckstore.objects.checkpoints import CheckpointDirectory

BUFFER_BYTES = 16 * 2**20
RANGE_MOST_BYTES = 8 * 2**20
_READ_BYTES = 4 * 2**20


class CheckedReader:
    """Reads storages of an open checkpoint, one at a time; a context manager.

    The buffer holds the bytes `_low` to `_high` of the storage, which lie in the piece at work and in those before it.
    """

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._directory = directory
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._opened = ExitStack()
        self._blob, self._fd = -1, -1
        self._what = ""
        self._tiled: _BandReader | None = None
        self._extents: tuple[Extent, ...] = ()
        self._starts: list[int] = []
        self._at = -1
        self._low = self._high = 0
        self._running: RunningDigest | None = None

    def begin(self, storage: int) -> None:
        """Go to a storage, after `finish` of the one before."""
        record = self._directory.manifest.storages[storage]
        self._tiled = None if record.tiling is None else _BandReader(self._directory, storage)
        self._extents = record.extents
        self._starts = list(accumulate((extent.length for extent in self._extents), initial=0))
        self._at = -1
        self._low = self._high = 0

    def read(self, start: int, stop: int, what: str) -> memoryview:
        """Return the bytes `start` to `stop` of the storage, at most `RANGE_MOST_BYTES`, valid until the next call.

        Raises:
            DamagedBlob: A piece is damaged or missing; the message names `what`.
        """
        self._what = what
        if start == stop:
            return self._buffer[:0]
        if self._tiled is not None:
            return self._tiled.read(start, stop, what)
        if self._at < 0 or not self._low <= start <= self._high:
            here = self._at >= 0 and self._high < start < self._starts[self._at + 1]
            if not here:
                self._seek(start)
        while self._high < stop:
            self._more(start)
        return self._buffer[start - self._low : stop - self._low]

    def finish(self) -> None:
        """Read the piece at work to its end and check it.

        Raises:
            DamagedBlob: It is damaged.
        """
        while self._at >= 0 and self._high < self._starts[self._at + 1]:
            self._more(self._high)
        self._at = -1

    def _seek(self, start: int) -> None:
        self.finish()
        self._at = bisect_right(self._starts, start) - 1
        self._low = self._high = self._starts[self._at]
        self._running = None

    def _more(self, wanted_from: int) -> None:
        """Read on; what lies before `wanted_from` may be forgotten."""
        if self._high == self._starts[self._at + 1]:
            self._at += 1
        extent = self._extents[self._at]
        end = self._starts[self._at + 1]
        count = min(end - self._high, _READ_BYTES)
        if self._high - self._low + count > BUFFER_BYTES:
            kept_from = min(wanted_from, self._high)
            kept = self._high - kept_from
            self._buffer[:kept] = self._buffer[kept_from - self._low : self._high - self._low]
            self._low = kept_from
        out = self._buffer[self._high - self._low : self._high - self._low + count]
        self._fill(extent, self._high - self._starts[self._at], out)
        if self._running is None:
            self._running = algorithm_of(extent.piece).start()
        self._running.update(out)
        self._high += count
        if self._high == end:
            found = algorithm_of(extent.piece).digest_of_parts(self._running)
            self._running = None
            self._directory.check_digest(extent, found, self._what)

    def _fill(self, extent: Extent, offset: int, out: memoryview) -> None:
        blob = self._directory.manifest.blobs[extent.blob].digest
        if self._blob != extent.blob:
            self._opened.close()
            self._blob = -1
            self._fd = self._opened.enter_context(self._directory.open_blob(blob, self._what))
            self._blob = extent.blob
        where = f"{self._directory.path}: blob {blob} of {self._what}"
        try:
            files.read_into(self._fd, extent.offset + offset, out, where)
        except DamagedBlob as error:
            error.blob, error.names = blob, (self._what,)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


class _BandReader:
    """Reads a storage with a tiling: as many rows at a time as its pieces reach over; these are checked whole."""

    def __init__(self, directory: CheckpointDirectory, storage: int) -> None:
        self._reader = RegionReader(directory, storage, "")
        self._low = self._high = 0
        self._band = memoryview(b"")

    def read(self, start: int, stop: int, what: str) -> memoryview:
        """Return the bytes `start` to `stop`."""
        if self._low <= start and stop <= self._high:
            return self._band[start - self._low : stop - self._low]
        out = memoryview(bytearray(stop - start))
        at = start
        while at < stop:
            if not self._low <= at < self._high:
                self._take(at, what)
            end = min(stop, self._high)
            out[at - start : end - start] = self._band[at - self._low : end - self._low]
            at = end
        return out

    def _take(self, at: int, what: str) -> None:
        self._reader.what = what
        low, high = self._reader.band_around(at)
        band = memoryview(bytearray(high - low))
        self._reader.bytes(low, high, band)
        self._low, self._high, self._band = low, high, band
