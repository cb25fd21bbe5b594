"""Copy sources on devices into host memory, with few large transfers that run while the caller continues."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

import torch

from ckstore.tensors.device import GROUPED_BELOW_BYTES, streams
from ckstore.tensors.device.streams import Lane, StreamMark

_ALIGNMENT = 64
_TOGETHER_BYTES = 8 * 2**20
"""The size of a group of small transfers, which is the only memory allocated on the device."""


class DeviceSource(Protocol):
    """Bytes on a device; see `ByteSource`."""

    name: str
    nbytes: int

    def flat_parts(self, start: int, stop: int) -> list[tuple[int, Any]]:
        """Return the parts of these bytes on the device, as flat tensors with their offsets. The rest is zeros."""

    def addresses(self, start: int, stop: int) -> list[tuple[Any, int, int]]:
        """Return the device, the address and the size of each of these parts."""


class Copying:
    """Running transfers. It keeps their tensors, so that their memory is not reused before the end."""

    def __init__(self) -> None:
        self._marks: list[StreamMark] = []
        self._kept: list[object] = []

    def keep(self, source: object) -> None:
        """Keep an object until the end."""
        self._kept.append(source)

    def add(self, mark: StreamMark) -> None:
        """Also wait for this mark."""
        self._marks.append(mark)

    def join(self, other: Copying) -> None:
        """Also wait for the transfers of another object."""
        self._marks += other._marks
        self._kept += other._kept

    def wait(self) -> None:
        """Wait until all transfers are done. A second call returns immediately."""
        for mark in self._marks:
            mark.synchronize()
        self._kept = []


def start(pairs: Iterable[tuple[DeviceSource, int]], flat: torch.Tensor, *, behind_current: bool) -> Copying:
    """Begin to copy each source to its offset in `flat`. If the memory is pinned, return before the copies end."""
    # `pairs`: sources, and where they go, by rising offset as far as they are small.
    # `behind_current`: begin behind what the current stream has been given, and let what it is given next wait; else
    # the caller has waited for the devices, and waits for the copies.
    copying = Copying()
    queues: dict[torch.device, _Queue] = {}
    try:
        for source, offset in pairs:
            copying.keep(source)
            end = 0
            for at, part in source.flat_parts(0, source.nbytes):
                # What lies between is of no tensor, and must not be what an earlier save left there.
                if at > end:
                    flat[offset + end : offset + at].zero_()
                end = at + part.numel()
                queue = queues.get(part.device)
                if queue is None:
                    lane = streams.system.lane(part.device, "from")
                    if behind_current:
                        lane.follow()
                    queue = queues[part.device] = _Queue(lane, flat)
                queue.add(offset + at, part)
            if end < source.nbytes:
                flat[offset + end : offset + source.nbytes].zero_()
        for queue in queues.values():
            queue.flush()
            copying.add(queue.lane.mark())
            if behind_current:
                queue.lane.lead()
    except BaseException:  # also Ctrl-C: nothing may use the memory until what was begun is done
        for queue in queues.values():
            queue.lane.mark().synchronize()
        raise
    return copying


class _Queue:
    """The transfers of one lane. The first begin while others are still being added."""

    def __init__(self, lane: Lane, flat: torch.Tensor) -> None:
        self.lane = lane
        self._flat = flat
        self._run: list[torch.Tensor] = []
        self._run_at = self._run_end = 0
        self._padding: dict[int, torch.Tensor] = {}

    def add(self, offset: int, part: torch.Tensor) -> None:
        """Copy a part. A small one is copied together with those that follow it."""
        nbytes = part.numel()
        if nbytes >= GROUPED_BELOW_BYTES:
            with self.lane.active():
                self.lane.copy(self._flat[offset : offset + nbytes], part)
            return
        gap = offset - self._run_end
        # Alignment only: a wider gap may be another source's, which is copied by itself.
        if self._run and (not 0 <= gap < _ALIGNMENT or offset + nbytes - self._run_at > _TOGETHER_BYTES):
            self.flush()
        if not self._run:
            self._run_at = offset
        elif gap:
            if gap not in self._padding:
                with self.lane.active():  # the zeros are written there, too
                    self._padding[gap] = torch.zeros(gap, dtype=torch.uint8, device=part.device)
            self._run.append(self._padding[gap])
        self._run.append(part)
        self._run_end = offset + nbytes

    def flush(self) -> None:
        """Copy the group of small parts."""
        run, self._run = self._run, []
        with self.lane.active():
            if len(run) > 1:
                # Where a few MiB are too much, one by one takes none.
                with suppress(torch.OutOfMemoryError):
                    self.lane.copy_together(self._flat[self._run_at : self._run_end], run)
                    return
            at = self._run_at
            for one in run:
                self.lane.copy(self._flat[at : at + one.numel()], one)
                at += one.numel()
