"""Read pieces of blobs at a remote. One request reads neighbours that are needed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckstore.errors import BytesElsewhere, RemoteError
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import Extent, Manifest
from ckstore.model.manifest.stored import BlobRecord, OldPiece
from ckstore.model.words import mending_there

Fetch = Callable[[BlobRecord, int, memoryview, OldPiece | None, bool], int | None]
"""Reads a range of a blob at a remote, past the cache if the last argument is True, or makes it from an older piece.

Returns how many bytes were downloaded, or None.
"""

# A request takes as long as some hundred KiB at the rate of a link; larger runs take memory and gain nothing.
_RUN_BYTES = 8 * 2**20
# Between two pieces of a pack lies padding of less than this; more is fetched only where it is next to nothing.
_GAP_BYTES = 64
_GAP_SHARE = 64
_FETCHES = 3
"""A bit that flips during the transfer is corrected by another read. Bytes that are wrong each time are wrong at the
remote."""


class RemotePieces:
    """Reads pieces of remote-only blobs, in one thread."""

    def __init__(self, manifest: Manifest, fetch: Fetch | None) -> None:
        self.received_bytes = 0  # so many came from remotes
        self._manifest = manifest
        self._fetch = fetch
        self._expected: list[tuple[int, int]] = []
        self._blob = -1
        self._window: tuple[int, memoryview] = 0, memoryview(b"")

    def expect(self, extents: Sequence[Extent]) -> None:
        """Announce the next reads from one blob, in the order of their offsets."""
        self.forget()
        self._blob = extents[0].blob
        self._expected = [(extent.offset, extent.offset + extent.length) for extent in extents]

    def read_right(
        self, extent: Extent, old: OldPiece | None, out: memoryview, what: str, before_each: Callable[[], None]
    ) -> None:
        """Fill memory with a piece, from the old piece in it if the remote has a difference between them.

        It is always compared with its digest, because nothing else checks the transfer.
        """
        for attempt in range(_FETCHES):
            before_each()
            # Once: what came of it, if it is not the piece, is no base of anything.
            if old is None or not self.advance(extent, old, out):
                self.read(extent, out, again=attempt > 0)
            old = None
            if algorithm_of(extent.piece).digest(out) == extent.piece:
                return
        # Not damage of this checkpoint: its directory gets no mark.
        msg = f"{what} of {self._manifest.name} was fetched {_FETCHES} times with bytes of another digest"
        raise RemoteError(
            f"{msg}: blob {self._manifest.blobs[extent.blob].digest} is damaged on the remote",
            hint=f"{mending_there()}; a store repairs it with store.verify(repair=True)",
            command_hint=f"{mending_there()}; a store repairs it with ckstore verify --repair",
        )

    def forget(self) -> None:
        """Download the next piece again."""
        self._window = 0, memoryview(b"")

    def read(self, extent: Extent, out: memoryview, *, again: bool = False) -> None:
        """Fill memory with a piece, unchecked. With `again`, the bytes received before were wrong."""
        start, stop = extent.offset, extent.offset + extent.length
        if extent.blob != self._blob:
            self._blob, self._expected = extent.blob, []
            self.forget()
        if again:
            self.forget()
        low, kept = self._window
        if low <= start and stop <= low + len(kept):
            out[:] = kept[start - low : stop - low]
            return
        run_stop = self._run_stop(start, stop)
        if run_stop == stop:
            self._receive(extent.blob, start, out, again=again)
            return
        run = memoryview(bytearray(run_stop - start))
        self._receive(extent.blob, start, run, again=again)
        self._window = start, run
        out[:] = run[: len(out)]

    def advance(self, extent: Extent, old: OldPiece, out: memoryview) -> bool:
        """Turn an old piece into this one in place. Return False if the remote has no difference between them."""
        if self._fetch is None:
            return False
        came = self._fetch(self._manifest.blobs[extent.blob], extent.offset, out, old, False)
        self.received_bytes += came or 0
        return came is not None

    def _run_stop(self, start: int, stop: int) -> int:
        """Return the end of one request, which includes announced neighbours."""
        for low, high in self._expected:
            if low < stop:
                continue
            # More than padding between them is fetched only up to a small share of what is wanted.
            if low - stop >= max(_GAP_BYTES, (stop - start) // _GAP_SHARE) or high - start > _RUN_BYTES:
                break
            stop = high
        return stop

    def _receive(self, blob: int, offset: int, into: memoryview, *, again: bool) -> None:
        record = self._manifest.blobs[blob]
        if self._fetch is None:
            raise BytesElsewhere(f"blob {record.digest} of {self._manifest.name} is stored only on a remote")
        self.received_bytes += self._fetch(record, offset, into, None, again) or 0
