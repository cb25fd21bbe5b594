"""Copy sources on devices into memory of ours: few large transfers, which go on while the caller does other work."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ckstore.model.sizes import FAR_SMALL_BYTES
from ckstore.tensors.device import streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckstore.tensors.device.streams import Lane, Mark

_TOGETHER_BYTES = 8 * 2**20
"""Of small ones at once: the only memory that is taken on the device."""


class FarSource(Protocol):
    """Bytes on a device; see `ByteSource`."""

    name: str
    nbytes: int

    def far_parts(self, start: int, stop: int) -> list[tuple[int, Any]]:
        """Return what lies on the device of these bytes, as flat tensors and where each begins; the rest is zeros."""


class Copying:
    """Transfers under way; it keeps their tensors, whose memory must not be used again before."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._kept: list[object] = []

    def keep(self, source: object) -> None:
        """Keep something until the end."""
        self._kept.append(source)

    def add(self, mark: Mark) -> None:
        """Wait for this, too."""
        self._marks.append(mark)

    def wait(self) -> None:
        """Wait until all of them are done; again, it returns at once.

        Raises:
            RuntimeError: The device failed.
        """
        for mark in self._marks:
            mark.synchronize()
        self._kept = []


def start(pairs: Iterable[tuple[FarSource, int]], flat: torch.Tensor, *, behind_current: bool) -> Copying:
    """Begin to copy each source to its offset in `flat`; return before that is done, if the memory is pinned.

    Args:
        pairs: Sources, and where they go, by rising offset as far as they are small.
        flat: The memory.
        behind_current: Begin behind what the current stream has been given, and let what it is given next wait; else
            the caller has waited for the devices, and waits for the copies.
    """
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = defaultdict(list)
    copying = Copying()
    for source, offset in pairs:
        copying.keep(source)
        end = 0
        for at, part in source.far_parts(0, source.nbytes):
            # What lies between is of no tensor, and must not be what an earlier save left there.
            flat[offset + end : offset + at].zero_()
            by_device[part.device].append((offset + at, part))
            end = at + part.numel()
        flat[offset + end : offset + source.nbytes].zero_()
    for device, parts in by_device.items():
        lane = streams.system.lane(device, "from")
        try:
            if behind_current:
                lane.follow()
            with lane.active():
                _enqueue(lane, parts, flat)
        except BaseException:  # also Ctrl-C: nothing may use the memory until what was begun is done
            copying.add(lane.mark())
            copying.wait()
            raise
        copying.add(lane.mark())
        if behind_current:
            lane.lead()
    return copying


def _enqueue(lane: Lane, parts: Sequence[tuple[int, torch.Tensor]], flat: torch.Tensor) -> None:
    run: list[torch.Tensor] = []
    run_at = run_end = 0

    def flush() -> None:
        if len(run) == 1:
            lane.copy(flat[run_at:run_end], run[0])
        elif run:
            try:
                lane.copy_together(flat[run_at:run_end], run)
            except torch.OutOfMemoryError:  # a few MiB too much: one by one takes none
                at = run_at
                for one in run:
                    lane.copy(flat[at : at + one.numel()], one)
                    at += one.numel()
        run.clear()

    padding: dict[int, torch.Tensor] = {}
    for offset, part in parts:
        nbytes = part.numel()
        if nbytes >= FAR_SMALL_BYTES:
            lane.copy(flat[offset : offset + nbytes], part)
            continue
        gap = offset - run_end
        # Alignment only: a wider gap may be another source's, which is copied by itself.
        if run and (not 0 <= gap < 64 or run_end + gap + nbytes - run_at > _TOGETHER_BYTES):
            flush()
        if run and gap:
            if gap not in padding:
                padding[gap] = torch.zeros(gap, dtype=torch.uint8, device=part.device)
            run.append(padding[gap])
        if not run:
            run_at = offset
        run.append(part)
        run_end = offset + nbytes
    flush()
