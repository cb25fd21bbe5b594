"""What a captured state is: a tree of nodes, its leaves, and where the bytes of each storage are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ckstore.model.manifest.manifest import FileRecord, LeafRecord, Node


class ByteSource(Protocol):
    """The bytes of one storage to be saved: live memory, which may change under the reader."""

    # Any thread may call its methods, several at a time.

    nbytes: int  # size of the storage, in bytes
    name: str  # name of its first leaf, for messages

    @property
    def on_device(self) -> bool:
        """Whether they lie on a device; then it has `device_parts` (`tensors/device/device_copies`)."""

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return these bytes of the live memory, read-only and uncopied."""
        # None: they have to be read with `read_into`, since the CPU cannot address them (CUDA) or they do not lie in
        # one row (they reach over a gap between views that share memory).

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy these bytes into `out`, which has their size; others run during large copies."""

    def changed(self) -> bool:
        """Whether the values were seen to be modified since the capture."""
        # False is not a proof: writes through NumPy, ``.data`` or foreign code are not counted.


@dataclass(frozen=True)
class Captured:
    """A state as the store sees it. It shares the memory of the live tensors."""

    state: Node  # the tree of nodes
    leaves: tuple[LeafRecord, ...]  # what is kept as bytes
    sources: tuple[ByteSource, ...]  # the bytes; ``sources[i]`` is storage `i` of the leaves
    files: tuple[FileRecord, ...] = ()  # the files that were committed; a saved state has none
    name_chars: int = 0  # characters of the names of all its values, but for their own keys
    left_out: tuple[str, ...] = ()  # attributes of its tensors, which the format does not hold: ``weight (tag)``

    def first_changed(self) -> str | None:
        """Return the name of a source that was seen to be modified since the capture; None if none was."""
        return next((source.name for source in self.sources if source.changed()), None)


class BytesSource:
    """Bytes in hand that nothing writes to: of bytes and str leaves, or of a snapshot that the saver has."""

    __slots__ = ("_data", "name", "nbytes")
    on_device = False

    def __init__(self, name: str, data: bytes | memoryview) -> None:
        self.name = name
        self.nbytes = len(data)
        self._data = memoryview(data)

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return these bytes, uncopied."""
        return self._data[start:stop]

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy these bytes into `out`."""
        out[:] = self._data[start:stop]

    def changed(self) -> bool:
        """Return False."""
        return False


class RangeSource:
    """Some of the bytes of a source."""

    __slots__ = ("_source", "_start", "name", "nbytes")

    def __init__(self, source: ByteSource, start: int, nbytes: int) -> None:
        self.name = source.name
        self.nbytes = nbytes
        self._source = source
        self._start = start

    @property
    def on_device(self) -> bool:
        """As the source."""
        return self._source.on_device

    def device_parts(self, start: int, stop: int) -> list[tuple[int, Any]]:
        """Return these bytes on their device, as the source."""
        source: Any = self._source
        found: list[tuple[int, Any]] = source.device_parts(self._start + start, self._start + stop)
        return found

    def device_places(self, start: int, stop: int) -> list[tuple[Any, int, int]]:
        """Return where these bytes are on their device, as the source."""
        source: Any = self._source
        found: list[tuple[Any, int, int]] = source.device_places(self._start + start, self._start + stop)
        return found

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return these bytes, uncopied; None as the source."""
        return self._source.view(self._start + start, self._start + stop)

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy these bytes into `out`."""
        self._source.read_into(self._start + start, self._start + stop, out)

    def changed(self) -> bool:
        """Whether the source was seen to be modified."""
        return self._source.changed()
