"""Read pieces of blobs from a remote. One request reads neighboring pieces that are needed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ckstore.errors import BytesElsewhere, RemoteError
from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.manifest import Extent, Manifest
from ckstore.model.manifest.stored import BlobRecord, OldPiece
from ckstore.model.words import mending_there

D = TypeVar("D")
Fetch = Callable[[D, BlobRecord, int, memoryview, OldPiece | None, bool], int | None]
"""A function that fills memory with a range of a blob of a checkpoint, from a remote or from an older piece.

If the last argument is True, the cache is bypassed. The function returns how many bytes were downloaded, or None if it
cannot fill the memory.
"""

# The maximum size of one request. The latency of a request corresponds to the transfer time of a few hundred KiB, so
# larger requests would take memory and save almost no time.
_RUN_BYTES = 8 * 2**20
# The padding between two pieces of a pack is smaller than this, and is downloaded. A larger gap is downloaded only if
# it is a small share of the wanted bytes.
_GAP_BYTES = 64
_GAP_SHARE = 64
_FETCHES = 3
"""The maximum number of downloads of one piece. Another download corrects a bit that flipped during the transfer. If
the bytes are wrong each time, they are wrong on the remote."""


class RemotePieces(Generic[D]):
    """Reads pieces of remote-only blobs, in one thread."""

    def __init__(self, directory: D, manifest: Manifest, fetch: Fetch[D] | None) -> None:
        self.received_bytes = 0  # how many bytes were downloaded
        self._directory = directory
        self._manifest = manifest
        self._fetch = fetch
        self._expected: list[tuple[int, int]] = []
        self._blob = -1
        self._window: tuple[int, memoryview] = 0, memoryview(b"")
        self._memory = memoryview(b"")

    def expect(self, extents: Sequence[Extent]) -> None:
        """Announce the next reads from one blob, in the order of their offsets."""
        self.forget()
        self._blob = extents[0].blob
        self._expected = [(extent.offset, extent.offset + extent.length) for extent in extents]

    def read_right(
        self, extent: Extent, old: OldPiece | None, out: memoryview, what: str, before_each: Callable[[], None]
    ) -> None:
        """Fill memory with a piece, and compare it with its digest.

        If the memory holds an old piece and the remote has the difference, only the difference is downloaded. The
        digest is always compared, because nothing else checks the transfer.
        """
        for attempt in range(_FETCHES):
            before_each()
            # Try the difference only once: if the result is wrong, the memory does not hold the old piece any more.
            if old is None or not self.advance(extent, old, out):
                self.read(extent, out, again=attempt > 0)
            old = None
            if algorithm_of(extent.piece).digest(out) == extent.piece:
                return
        # The damage is on the remote, so the local directory of the checkpoint gets no mark.
        msg = f"{what} of {self._manifest.name} was fetched {_FETCHES} times with bytes of another digest"
        raise RemoteError(
            f"{msg}: blob {self._manifest.blobs[extent.blob].digest} is damaged on the remote",
            hint=f"{mending_there()}; a store repairs it with store.verify(repair=True)",
            command_hint=f"{mending_there()}; a store repairs it with ckstore verify --repair",
        )

    def forget(self) -> None:
        """Drop the downloaded bytes, so that the next piece is downloaded again."""
        self._window = 0, memoryview(b"")

    def read(self, extent: Extent, out: memoryview, *, again: bool = False) -> None:
        """Fill memory with a piece without checking it. `again` means that the last download had wrong bytes."""
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
        self.forget()  # the request overwrites the memory of the last one
        run = self._run_memory(run_stop - start)
        self._receive(extent.blob, start, run, again=again)
        self._window = start, run
        out[:] = run[: len(out)]

    def _run_memory(self, nbytes: int) -> memoryview:
        """Return memory for one request, which the next request overwrites."""
        # The kernel needs longer to provide new memory than the processor needs to hash that many bytes.
        if len(self._memory) < nbytes:
            self._memory = aligned_buffer(-(-nbytes // GRAIN_BYTES) * GRAIN_BYTES)
        return self._memory[:nbytes]

    def advance(self, extent: Extent, old: OldPiece, out: memoryview) -> bool:
        """Change an old piece in memory into this piece. Return False if the remote has no difference between them."""
        if self._fetch is None:
            return False
        came = self._fetch(self._directory, self._manifest.blobs[extent.blob], extent.offset, out, old, False)
        self.received_bytes += came or 0
        return came is not None

    def _run_stop(self, start: int, stop: int) -> int:
        """Return the end of one request, which includes announced neighboring pieces."""
        for low, high in self._expected:
            if low < stop:
                continue
            # A gap that is larger than the padding is downloaded only if it is a small share of the wanted bytes.
            if low - stop >= max(_GAP_BYTES, (stop - start) // _GAP_SHARE) or high - start > _RUN_BYTES:
                break
            stop = high
        return stop

    def _receive(self, blob: int, offset: int, into: memoryview, *, again: bool) -> None:
        record = self._manifest.blobs[blob]
        if self._fetch is None:
            raise BytesElsewhere(f"blob {record.digest} of {self._manifest.name} is stored only on a remote")
        self.received_bytes += self._fetch(self._directory, record, offset, into, None, again) or 0
