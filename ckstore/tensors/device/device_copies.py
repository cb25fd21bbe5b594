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
"""The maximum size of a group of small transfers. Only groups allocate memory on the device."""


class DeviceSource(Protocol):
    """Bytes on a device; see `ByteSource`."""

    name: str
    nbytes: int

    def flat_parts(self, start: int, stop: int) -> list[tuple[int, Any]]:
        """Return the parts of these bytes on the device, as flat tensors with their offsets. Other bytes are zeros."""

    def addresses(self, start: int, stop: int) -> list[tuple[Any, int, int]]:
        """Return the device, the address and the size of each part that `flat_parts` returns."""


class Copying:
    """Running transfers. This object keeps their tensors, so that the memory is not reused before the transfers end."""

    def __init__(self) -> None:
        self._marks: list[StreamMark] = []
        self._kept: list[object] = []

    def keep(self, source: object) -> None:
        """Keep an object until the transfers end."""
        self._kept.append(source)

    def add(self, mark: StreamMark) -> None:
        """Add a mark to those that `wait` waits for."""
        self._marks.append(mark)

    def join(self, other: Copying) -> None:
        """Add the transfers of another object to those that `wait` waits for."""
        self._marks += other._marks
        self._kept += other._kept

    def wait(self) -> None:
        """Wait until all transfers are done. A second call returns immediately."""
        for mark in self._marks:
            mark.synchronize()
        self._kept = []


def start(pairs: Iterable[tuple[DeviceSource, int]], flat: torch.Tensor, *, behind_current: bool) -> Copying:
    """Begin to copy each source to its offset in `flat`. If the memory is pinned, return before the copies end.

    Args:
        pairs: Each source with its offset. Small sources must be in ascending order of their offsets.
        flat: The memory to copy to.
        behind_current: Whether the copies begin after the work queued on the current streams, and later work of these
            streams waits for the copies. If False, the caller must wait for the devices before this call, and for the
            copies after it.
    """
    copying = Copying()
    queues: dict[torch.device, _Queue] = {}
    try:
        for source, offset in pairs:
            copying.keep(source)
            end = 0
            for at, part in source.flat_parts(0, source.nbytes):
                # Bytes between the parts belong to no tensor. Without this, they would be bytes of an earlier save.
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
    except BaseException:  # even after Ctrl-C, nothing may use the memory until all started transfers end
        for queue in queues.values():
            queue.lane.mark().synchronize()
        raise
    return copying


class _Queue:
    """The transfers of one lane. The first transfers begin while parts are still being added."""

    def __init__(self, lane: Lane, flat: torch.Tensor) -> None:
        self.lane = lane
        self._flat = flat
        self._run: list[torch.Tensor] = []
        self._run_at = self._run_end = 0
        self._padding: dict[int, torch.Tensor] = {}

    def add(self, offset: int, part: torch.Tensor) -> None:
        """Copy a part. A small part is copied together with the small parts that follow it."""
        nbytes = part.numel()
        if nbytes >= GROUPED_BELOW_BYTES:
            with self.lane.active():
                self.lane.copy(self._flat[offset : offset + nbytes], part)
            return
        gap = offset - self._run_end
        # Only fill gaps that alignment caused. A wider gap may belong to another source, which is copied separately.
        if self._run and (not 0 <= gap < _ALIGNMENT or offset + nbytes - self._run_at > _TOGETHER_BYTES):
            self.flush()
        if not self._run:
            self._run_at = offset
        elif gap:
            if gap not in self._padding:
                with self.lane.active():  # the zeros must be written in the same lane
                    self._padding[gap] = torch.zeros(gap, dtype=torch.uint8, device=part.device)
            self._run.append(self._padding[gap])
        self._run.append(part)
        self._run_end = offset + nbytes

    def flush(self) -> None:
        """Copy the group of small parts."""
        run, self._run = self._run, []
        with self.lane.active():
            if len(run) > 1:
                # If the device lacks memory for the group, copy the parts one by one, which takes no memory.
                with suppress(torch.OutOfMemoryError):
                    self.lane.copy_together(self._flat[self._run_at : self._run_end], run)
                    return
            at = self._run_at
            for one in run:
                self.lane.copy(self._flat[at : at + one.numel()], one)
                at += one.numel()
