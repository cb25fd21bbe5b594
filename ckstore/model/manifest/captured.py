"""A captured state: a tree of nodes, its leaves, and a source of the bytes of each storage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ckstore.model.manifest.manifest import FileRecord, LeafRecord, Node
from ckstore.model.sizes import SMALL_BELOW_BYTES, medium_count, pack_below_bytes


class SourceReader(Protocol):
    """Private memory to which the bytes of sources are copied, one range after another.

    Only one thread may use it.
    """

    def parts(self, source: Any, start: int, stop: int, part_bytes: int) -> Iterator[memoryview]:
        """Yield bytes `start` to `stop` of a source, part by part as they arrive."""

    def whole(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` of the range that was read last."""

    def close(self) -> None:
        """Free the memory."""


class Transfers(Protocol):
    """Running copies of sources to pinned memory."""

    def join(self, other: Any) -> None:
        """Make `wait` also wait for the transfers of another object."""

    def wait(self) -> None:
        """Wait until all transfers are done; a second call returns immediately."""


class PinnedMemory(Protocol):
    """Host memory that is prepared for transfers from a memory space."""

    def copy(self, pairs: Iterable[tuple[Any, int]], *, behind_current: bool) -> Transfers:
        """Start to copy each source to its offset; see `Snapshot.fill`."""

    def close(self) -> None:
        """Release the memory; no transfer may be running."""


class MemorySpace(Protocol):
    """Memory that the CPU cannot address, such as GPU memory, with methods that read many sources at once."""

    grouped_below_bytes: int
    """Sources below this size are transferred together if they are adjacent in the destination."""

    def fingerprints(self, ranges: Sequence[tuple[Any, int, int]]) -> list[bytes]:
        """Return a fingerprint of each range of a source; a fingerprint changes if the bytes of its range change.

        Return an empty list if there is not enough memory to compute the fingerprints.
        """

    def fingerprints_of(self, sources: Sequence[Any]) -> list[bytes]:
        """Return a fingerprint of each whole source; see `fingerprints`."""

    def prepare(self, timeout_s: float) -> None:
        """Do the work that would otherwise slow down the first fingerprints."""

    def wait_for(self, sources: Iterable[Any]) -> Collection[object]:
        """Wait for the queued work that may write to sources, and return the argument `waited` for `capture`."""

    def fetch(self, sources: Sequence[Any]) -> list[memoryview]:
        """Return the bytes of small sources, using only a few transfers."""

    def reader(self, nbytes: int) -> SourceReader:
        """Return a reader of ranges of at most `nbytes`."""

    def pin(self, memory: memoryview) -> PinnedMemory:
        """Prepare host memory for transfers."""


class ByteSource(Protocol):
    """The bytes of one storage to save, in live memory that may change during the save.

    Several threads may call the methods at the same time.
    """

    nbytes: int  # size of the storage, in bytes
    name: str  # name of the first leaf in the storage, for messages

    @property
    def space(self) -> MemorySpace | None:
        """The memory space of the bytes, or None if they are in host memory or in a file."""

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return a read-only view of bytes `start` to `stop` in the live memory, without copying them.

        Return None if the bytes must be read with `read_into`, because the CPU cannot address them or they are
        not contiguous (they span a gap between views that share memory).
        """

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy bytes `start` to `stop` into `out`, which has their size; other threads can run during a large copy."""

    def changed(self) -> bool:
        """Return whether a modification of the values since the capture was detected.

        Modifications through NumPy, ``.data`` or foreign code are not detected.
        """


def bytes_of(source: ByteSource, start: int, stop: int) -> memoryview:
    """Return current bytes of a source, as a view of live memory if possible, otherwise as a copy."""
    live = source.view(start, stop)
    return copy_of(source, start, stop) if live is None else live


def copy_of(source: ByteSource, start: int, stop: int) -> memoryview:
    """Return a copy of current bytes of a source."""
    data = memoryview(bytearray(stop - start))
    source.read_into(start, stop, data)
    return data


@dataclass(frozen=True)
class Captured:
    """A state in the form that the store saves, sharing the memory of the live tensors."""

    state: Node  # the tree of nodes
    leaves: tuple[LeafRecord, ...]  # the values that are stored as bytes
    sources: tuple[ByteSource, ...]  # the bytes; ``sources[i]`` is storage `i` of the leaves
    files: tuple[FileRecord, ...] = ()  # the files that were committed; a saved state has none
    name_chars: int = 0  # number of characters in all names of values, without the last key of each
    left_out: tuple[str, ...] = ()  # descriptions of values that the checkpoint does not keep
    # Whether each storage of 1 MiB or more has its own blobs, so that later saves can reuse unchanged blobs uncopied.
    own_blobs: bool = False

    @cached_property
    def space(self) -> MemorySpace | None:
        """The memory space of the sources that are not in host memory, or None if all sources are in host memory."""
        return next((source.space for source in self.sources if source.space is not None), None)

    def pack_below_bytes(self, chunk_bytes: int) -> int:
        """Return the size below which storages of this state share packs in a store with chunks of this size."""
        # Large storages in another memory space are copied in chunks, and unchanged chunks are not read.
        if self.own_blobs or self.space is not None:
            return SMALL_BELOW_BYTES
        return pack_below_bytes(self._medium_count, chunk_bytes)

    @cached_property
    def _medium_count(self) -> int:
        return medium_count([source.nbytes for source in self.sources])

    def first_changed(self) -> str | None:
        """Return the name of a source with a detected modification since the capture, or None."""
        return next((source.name for source in self.sources if source.changed()), None)


class BytesSource:
    """Bytes in memory that do not change, from bytes and str leaves or from a snapshot in the saver."""

    __slots__ = ("_data", "name", "nbytes")
    space = None

    def __init__(self, name: str, data: bytes | memoryview) -> None:
        self.name = name
        self.nbytes = len(data)
        self._data = memoryview(data)

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return bytes `start` to `stop` without copying them."""
        return self._data[start:stop]

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy bytes `start` to `stop` into `out`."""
        out[:] = self._data[start:stop]

    def changed(self) -> bool:
        """Return False."""
        return False


class RangeSource:
    """A range of the bytes of another source."""

    __slots__ = ("_source", "_start", "name", "nbytes")

    def __init__(self, source: ByteSource, start: int, nbytes: int) -> None:
        self.name = source.name
        self.nbytes = nbytes
        self._source = source
        self._start = start

    @property
    def space(self) -> MemorySpace | None:
        """The memory space of the underlying source."""
        return self._source.space

    def flat_parts(self, start: int, stop: int) -> list[tuple[int, Any]]:
        """Return bytes `start` to `stop` as flat tensors with their offsets, from the underlying source."""
        source: Any = self._source
        found: list[tuple[int, Any]] = source.flat_parts(self._start + start, self._start + stop)
        return found

    def addresses(self, start: int, stop: int) -> list[tuple[Any, int, int]]:
        """Return the locations of bytes `start` to `stop` in their memory space, from the underlying source."""
        source: Any = self._source
        found: list[tuple[Any, int, int]] = source.addresses(self._start + start, self._start + stop)
        return found

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return bytes `start` to `stop` without copying them, or None if the underlying source returns None."""
        return self._source.view(self._start + start, self._start + stop)

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy bytes `start` to `stop` into `out`."""
        self._source.read_into(self._start + start, self._start + stop, out)

    def changed(self) -> bool:
        """Return whether a modification of the underlying source was detected."""
        return self._source.changed()
