"""Read bytes on devices through pinned memory: transfers go on while what has arrived is hashed and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ckstore.tensors.device import pinned, staging, streams
from ckstore.tensors.device.pinned import Buffer
from ckstore.tensors.device.staging import DeviceSource
from ckstore.tensors.device.streams import Mark

_ALIGNMENT = 64


class DeviceReader:
    """Reads ranges of at most `nbytes` of sources on devices, one after another. Not for several threads."""

    def __init__(self, nbytes: int) -> None:
        self._buffer: Buffer = pinned.pool.take(nbytes)

    def parts(self, source: DeviceSource, start: int, stop: int, part_bytes: int) -> Iterator[memoryview]:
        """Give the bytes part by part as they arrive; all of them are on their way when the first is given."""
        # They lie one behind another, and stay until the next call.
        flat, view = self._buffer.flat, self._buffer.view
        marks: list[list[Mark]] = []
        try:
            for at in range(start, stop, part_bytes):
                end = min(at + part_bytes, stop)
                marks.append(_enqueue(source, at, end, flat[at - start : end - start]))
            for index, at in enumerate(range(0, stop - start, part_bytes)):
                for mark in marks[index]:
                    mark.synchronize()
                yield view[at : min(at + part_bytes, stop - start)]
        finally:  # given up in the middle: what is on its way must not come into the next range
            for several in marks:
                for mark in several:
                    mark.synchronize()

    def whole(self, nbytes: int) -> memoryview:
        """Return the first bytes of what was read last."""
        return self._buffer.view[:nbytes]

    def close(self) -> None:
        """Leave the memory to others."""
        pinned.pool.give(self._buffer)


def _enqueue(source: DeviceSource, start: int, stop: int, to: torch.Tensor) -> list[Mark]:
    marks, end = [], 0
    for at, part in source.device_parts(start, stop):
        to[end:at].zero_()
        end = at + part.numel()
        lane = streams.system.lane(part.device, "from")
        with lane.active():
            lane.copy(to[at:end], part)
        marks.append(lane.mark())
    to[end:].zero_()
    return marks


def fetch(sources: Sequence[DeviceSource]) -> list[memoryview]:
    """Return the bytes of small sources on devices, each aligned, in memory of their own."""
    offsets, end = [], 0
    for source in sources:
        offsets.append(end)
        end += -(-source.nbytes // _ALIGNMENT) * _ALIGNMENT
    # Not pinned: it is kept as long as the pieces are, and they are few megabytes.
    memory = memoryview(bytearray(end))
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    staging.start(zip(sources, offsets, strict=True), flat, behind_current=False).wait()
    return [memory[at : at + source.nbytes] for at, source in zip(offsets, sources, strict=True)]
