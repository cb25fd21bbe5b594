"""The bytes of tensors to be saved, read from live memory."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ckstore.errors import StateChanged
from ckstore.tensors.device.memory_space import DeviceSpace, space_of
from ckstore.tensors.numpy_leaves import copy_bytes
from ckstore.tensors.torch_rows import views_of

_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_READ_ONLY = 0x100  # PyBUF_READ
_READ_WRITE = 0x200  # PyBUF_WRITE
Watched = tuple[torch.Tensor, int]  # A tensor of the state, and its version when the state was captured


class TorchSource:
    """A range of a live storage; see `captured.ByteSource`. This object keeps the storage and its views alive."""

    __slots__ = ("_address", "_start", "_storage", "_view", "name", "nbytes", "space", "watched")

    def __init__(
        self, name: str, storage: torch.UntypedStorage, start: int, nbytes: int, watched: tuple[Watched, ...]
    ) -> None:
        self.name = name
        self.nbytes = nbytes
        self.watched = watched  # its tensors, whose versions count modifications
        self.space = space_of(storage.device)
        self._storage = storage
        self._start = start
        self._address: int | None = None
        self._view = memoryview(b"")

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return these bytes without a copy, or None if they are not in host memory."""
        # The view is valid until the storage is resized, so every call checks the storage. A state must not change
        # until `save` returns, so no thread may resize the storage while its bytes are read.
        if self._address is None:
            if self.space is not None:
                return None
            address = self._storage.data_ptr()
            reaches = self._storage.nbytes() >= self._start + self.nbytes
            self._view = memory_at(address + self._start, self.nbytes) if reaches else memoryview(b"")
            self._address = address  # set last, because another thread may read it
        if self._storage.data_ptr() != self._address or self._storage.nbytes() < self._start + self.nbytes:
            raise _lost_memory(self.name)
        return self._view[start:stop]

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy these bytes into `out`, from the device if they are on one."""
        live = self.view(start, stop)
        if live is not None:
            copy_bytes(live, out)
        elif stop > start:
            torch.frombuffer(out, dtype=torch.uint8).copy_(self.flat()[start:stop])

    def flat_parts(self, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
        """Return these bytes on their device, with the offset of each part."""
        return [(0, self.flat()[start:stop])] if stop > start else []

    def addresses(self, start: int, stop: int) -> list[tuple[torch.device, int, int]]:
        """Return the device, the address and the size of these bytes.

        This takes a fifth of the time of creating a tensor.
        """
        storage = self._storage
        return [(storage.device, storage.data_ptr() + self._start + start, stop - start)] if stop > start else []

    def weakly(self) -> tuple[StorageWeakRef, int] | None:
        """Return a weak reference to the storage, and the offset of these bytes in the storage."""
        return StorageWeakRef(self._storage), self._start  # type: ignore[no-untyped-call]

    def changed(self) -> bool:
        """Whether a tensor was modified since the capture, according to torch's counter."""
        return was_changed(self.watched)

    def flat(self) -> torch.Tensor:
        """Return all bytes as a tensor on their device."""
        empty = torch.empty(0, dtype=torch.uint8, device=self._storage.device)
        return empty.set_(self._storage, self._start, (self.nbytes,), (1,))


class GappedSource:
    """Ranges of a live storage at given offsets, with zeros between the ranges; see `captured.ByteSource`."""

    __slots__ = ("_places", "_sources", "name", "nbytes", "watched")

    def __init__(
        self,
        name: str,
        nbytes: int,
        places: Sequence[int],
        sources: Sequence[TorchSource],
        watched: tuple[Watched, ...],
    ) -> None:
        self.name = name
        self.nbytes = nbytes
        self.watched = watched
        self._places = places
        self._sources = sources

    @property
    def space(self) -> DeviceSpace | None:
        """The memory space of the storage."""
        return self._sources[0].space

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return these bytes without a copy, or None if they are not all in one range on the CPU."""
        at = bisect_right(self._places, start) - 1
        if at < 0 or stop > self._places[at] + self._sources[at].nbytes:
            return None
        return self._sources[at].view(start - self._places[at], stop - self._places[at])

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Copy these bytes into `out`, and write zeros for gaps."""
        done = start
        for place, source, low, high in self._between(start, stop):
            # The live memory of a gap belongs to no tensor, and may differ in each save, so it is not copied.
            out[done - start : low - start] = bytes(low - done)
            source.read_into(low - place, high - place, out[low - start : high - start])
            done = high
        out[done - start :] = bytes(stop - done)

    def flat_parts(self, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
        """Return these bytes on their device without the gaps, with the offset of each part."""
        found = self._between(start, stop)
        return [(low - start, source.flat()[low - place : high - place]) for place, source, low, high in found]

    def addresses(self, start: int, stop: int) -> list[tuple[torch.device, int, int]]:
        """Return the device, the address and the size of each part that `flat_parts` returns."""
        found = self._between(start, stop)
        return [place for at, source, low, high in found for place in source.addresses(low - at, high - at)]

    def weakly(self) -> None:
        """Return None, since a reference can only name one range of a storage."""

    def _between(self, start: int, stop: int) -> Iterator[tuple[int, TorchSource, int, int]]:
        """Yield place and source of each range with bytes from `start` to `stop`, and the limits of these bytes.

        Places and limits are offsets in this source.
        """
        first = max(bisect_right(self._places, start) - 1, 0)
        for place, source in zip(self._places[first:], self._sources[first:], strict=True):
            if place >= stop:
                break
            low, high = max(place, start), min(place + source.nbytes, stop)
            if low < high:  # otherwise, `start` is in the gap after the range
                yield place, source, low, high

    def changed(self) -> bool:
        """Whether a tensor was modified since the capture, according to torch's counter."""
        return was_changed(self.watched)


class StridedSource:
    """The elements of a strided CPU tensor in row-major order; see `captured.ByteSource`.

    The elements are gathered when they are read. A copy of all elements would double the memory of the tensor until the
    end of the save.
    """

    __slots__ = ("_bits", "_item_bytes", "_stop", "name", "nbytes", "watched")
    space = None

    def __init__(self, name: str, bits: torch.Tensor, stop: int, watched: tuple[Watched, ...]) -> None:
        self.name = name
        self._stop = stop  # end of its last element in the storage, in bytes
        self.nbytes = bits.numel() * bits.element_size()
        self.watched = watched
        self._bits = bits  # its elements, as integers
        self._item_bytes = bits.element_size()

    def view(self, start: int, stop: int) -> memoryview | None:
        """Return None, since the bytes are not contiguous."""
        del start, stop
        return None

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Gather these bytes into `out`."""
        if start == stop:
            return
        first, last = start // self._item_bytes, -(-stop // self._item_bytes)
        # Gather the elements in separate memory, because `out` may begin in the middle of an element.
        values = torch.empty(last - first, dtype=self._bits.dtype, device="cpu")
        # Without this check, torch would raise a RuntimeError about the sizes of a view.
        if self._bits.untyped_storage().nbytes() < self._stop:
            raise _lost_memory(self.name)
        for before, view in views_of(self._bits, first, values.numel()):
            values[before : before + view.numel()].view(view.shape).copy_(view)
        data = memory_at(values.data_ptr(), values.numel() * self._item_bytes)
        copy_bytes(data[start - first * self._item_bytes :][: stop - start], out)

    def weakly(self) -> None:
        """Return None, since gathered bytes have no place in a storage."""

    def changed(self) -> bool:
        """Whether the tensor was modified since the capture, according to torch's counter."""
        return was_changed(self.watched)


def storage_of(weak: StorageWeakRef) -> torch.UntypedStorage | None:
    """Return the storage of a weak reference, or None if no other object keeps the storage alive."""
    found: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)  # noqa: SLF001
    return found


def _lost_memory(name: str) -> StateChanged:
    msg = f"{name} lost its memory while it was being saved; nothing was published"
    return StateChanged(msg, hint="do not free or resize tensors until save() has returned")


def memory_at(address: int, nbytes: int, *, writable: bool = False) -> memoryview:
    """Return a view of memory that the caller keeps alive.

    This takes a third of the time of a view through torch and NumPy.
    """
    flags = _READ_WRITE if writable else _READ_ONLY
    view: memoryview = _memory_at(address, nbytes, flags) if nbytes else memoryview(bytearray())
    return view


def was_changed(watched: tuple[Watched, ...]) -> bool:
    """Whether torch counted a modification of one of these tensors."""
    # A generator would double the time for tens of thousands of tensors.
    for tensor, version in watched:  # noqa: SIM110
        if tensor._version != version:  # noqa: SLF001
            return True
    return False


def beside(tensor: torch.Tensor) -> torch.device:
    """Return a context in which torch creates tensors on the device of `tensor`, whatever the default device is."""
    return tensor.device
