"""Fill and read device memory through pinned host memory, while the processor does other work."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

import torch

from ckstore.tensors.device import device_copies, pinned, streams
from ckstore.tensors.device.device_copies import DeviceSource
from ckstore.tensors.device.pinned import Buffer
from ckstore.tensors.device.streams import StreamMark
from ckstore.tensors.memory_layout import StorageMemory

SLOT_BYTES = 8 * 2**20
"""The size of one transfer, in bytes. A transfer takes 0.15 ms.

With smaller transfers, sixteen threads waited for the locks of Python and of the driver.
"""
_WINDOW_BYTES = 2 * 2**20
"""The number of bytes that are read and hashed at once, so that they stay in the processor's cache."""
_SLOTS = 2
"""The number of slots for each thread. Filling one slot takes far longer than the transfer of the other."""


class Feed:
    """The transfers to one device, for several threads. Call `finish` at the end, even after an error."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lane = streams.system.lane(device, "to")
        self._local = threading.local()
        self._mutex = threading.Lock()
        self._buffers: list[Buffer] = []

    def begin(self) -> None:
        """Wait for queued work on the device, which may still read or write the memory to be filled."""
        streams.system.synchronize(self._device)

    def windows(self, flat: torch.Tensor) -> Iterator[memoryview]:
        """Yield host memory for each part of `flat` in turn, which the caller fills.

        A full slot is transferred to the device. Two threads must not fill the same `flat` at the same time.
        """
        slots = self._slots()
        for at in range(0, flat.numel(), SLOT_BYTES):
            slot = next(slots)
            nbytes = min(SLOT_BYTES, flat.numel() - at)
            slot.wait()
            for start in range(0, nbytes, _WINDOW_BYTES):
                yield slot.view[start : min(start + _WINDOW_BYTES, nbytes)]
            with self._lane.active():
                self._lane.copy(flat[at : at + nbytes], slot.flat[:nbytes])
                slot.mark = self._lane.mark()

    def finish(self) -> None:
        """Wait until all transfers have ended."""
        mark = self._lane.mark()
        try:
            mark.synchronize()
        finally:
            with self._mutex:
                buffers, self._buffers = self._buffers, []
                self._local = threading.local()
            for buffer in buffers:
                pinned.pool.give(buffer)

    def _slots(self) -> Iterator[_Slot]:
        slots: Iterator[_Slot] | None = getattr(self._local, "slots", None)
        if slots is None:
            buffer = pinned.pool.take(_SLOTS * SLOT_BYTES)
            with self._mutex:
                self._buffers.append(buffer)
            slots = self._local.slots = cycle([_Slot(buffer, i * SLOT_BYTES) for i in range(_SLOTS)])
        return slots


class _Slot:
    def __init__(self, buffer: Buffer, at: int) -> None:
        self.view = buffer.view[at : at + SLOT_BYTES]
        self.flat = buffer.flat[at : at + SLOT_BYTES]
        self.mark: StreamMark | None = None

    def wait(self) -> None:
        """Wait until the transfer from this slot has ended."""
        if self.mark is not None:
            self.mark.synchronize()


class DeviceMemory:
    """Bytes on a device that a load fills. It can be sliced like a memoryview."""

    __slots__ = ("feed", "flat")

    def __init__(self, flat: torch.Tensor, feed: Feed | None = None) -> None:
        self.flat = flat
        self.feed = feed  # the transfers that fill the bytes; `filling` sets it

    def __len__(self) -> int:
        return self.flat.numel()

    def __getitem__(self, at: slice) -> DeviceMemory:
        return DeviceMemory(self.flat[at], self.feed)

    def windows(self) -> Iterator[memoryview]:
        """Yield host memory for each part in turn, like `Feed.windows`."""
        if self.feed is None:
            raise RuntimeError("memory on a device is filled inside `filling`")
        return self.feed.windows(self.flat)

    def take(self, data: memoryview) -> None:
        """Fill all bytes with `data`."""
        at = 0
        for window in self.windows():
            window[:] = data[at : at + len(window)]
            at += len(window)

    def storage(self) -> StorageMemory:
        """Return the filled bytes as the memory of a storage."""
        return StorageMemory(self.flat, memoryview(b""))

    @staticmethod
    @contextmanager
    def filling(memories: Iterable[DeviceMemory]) -> Iterator[None]:
        """Return a context in which these memories can be filled.

        On entry, the context waits for all work queued on the devices. On exit, it waits for its own transfers.
        """
        feeds: dict[torch.device, Feed] = {}
        for memory in memories:
            device = memory.flat.device
            if device not in feeds:
                feeds[device] = Feed(device)
                feeds[device].begin()
            memory.feed = feeds[device]
        try:
            yield
        finally:  # even after an error, because pending copies read memory of this process
            for feed in feeds.values():
                feed.finish()


_ALIGNMENT = 64


class DeviceReader:
    """Reads ranges of at most `nbytes` of sources on devices, one after another. Only one thread may use it."""

    def __init__(self, nbytes: int) -> None:
        self._buffer: Buffer = pinned.pool.take(nbytes)

    def parts(self, source: DeviceSource, start: int, stop: int, part_bytes: int) -> Iterator[memoryview]:
        """Yield the bytes part by part as they arrive. All transfers are queued before the first part is yielded.

        The parts are adjacent in memory, and remain valid until the next call.
        """
        flat, view = self._buffer.flat, self._buffer.view
        marks: list[list[StreamMark]] = []
        try:
            for at in range(start, stop, part_bytes):
                end = min(at + part_bytes, stop)
                marks.append(_enqueue(source, at, end, flat[at - start : end - start]))
            for index, at in enumerate(range(0, stop - start, part_bytes)):
                for mark in marks[index]:
                    mark.synchronize()
                yield view[at : min(at + part_bytes, stop - start)]
        finally:  # if the caller stops early, running transfers must not write into the next range
            for several in marks:
                for mark in several:
                    mark.synchronize()

    def whole(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` of the range that was read last."""
        return self._buffer.view[:nbytes]

    def close(self) -> None:
        """Return the memory to the pool."""
        pinned.pool.give(self._buffer)


def _enqueue(source: DeviceSource, start: int, stop: int, to: torch.Tensor) -> list[StreamMark]:
    marks, end = [], 0
    for at, part in source.flat_parts(start, stop):
        to[end:at].zero_()
        end = at + part.numel()
        lane = streams.system.lane(part.device, "from")
        with lane.active():
            lane.copy(to[at:end], part)
        marks.append(lane.mark())
    to[end:].zero_()
    return marks


def fetch(sources: Sequence[DeviceSource]) -> list[memoryview]:
    """Return the bytes of small sources on devices, each aligned, in new memory."""
    offsets, end = [], 0
    for source in sources:
        offsets.append(end)
        end += -(-source.nbytes // _ALIGNMENT) * _ALIGNMENT
    # This memory is not pinned, because it is only a few megabytes, and must exist as long as the returned views.
    memory = memoryview(bytearray(end))
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    device_copies.start(zip(sources, offsets, strict=True), flat, behind_current=False).wait()
    return [memory[at : at + source.nbytes] for at, source in zip(offsets, sources, strict=True)]
