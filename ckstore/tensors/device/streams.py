"""Access to CUDA: separate streams, marks in streams, and pinned memory. Tests replace `system` with a stand-in."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal, Protocol

import torch

Direction = Literal["from", "to"]
_PORTABLE = 1
"""The flag cudaHostRegisterPortable pins memory for all devices, because one snapshot has the states of all devices."""


class StreamMark(Protocol):
    """A point in a lane."""

    def synchronize(self) -> None:
        """Wait until all work before this point is done."""


class Lane:
    """Copies between a device and host memory, one after another, while the device computes.

    Any thread may call its methods.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which work of torch runs in this lane. Call `copy` and `copy_together` inside it."""
        return torch.cuda.stream(self._stream)

    def follow(self) -> None:
        """Make later work of this lane wait for the work queued on the caller's current stream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def lead(self) -> None:
        """Make later work of the caller's current stream wait for this lane."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def copy(self, to: torch.Tensor, found: torch.Tensor) -> None:
        """Copy flat bytes. The call does not wait if the memory is pinned."""
        to.copy_(found, non_blocking=True)

    def copy_together(self, to: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        """Copy flat pieces to adjacent places, in one transfer."""
        # The joined tensor may be freed immediately. torch reuses its memory only for later work of this stream, which
        # runs after the copy.
        to.copy_(torch.cat(list(pieces)), non_blocking=True)

    def mark(self) -> StreamMark:
        """Return a mark after all work queued so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


class Cuda:
    """The CUDA objects that exist once in a process."""

    kinds = frozenset({"cuda"})

    def __init__(self) -> None:
        self._lanes: dict[tuple[torch.device, Direction], Lane] = {}
        self._mutex = threading.Lock()

    def lane(self, device: torch.device, direction: Direction) -> Lane:
        """Return the lane of a device for one direction. A device can copy in both directions at the same time."""
        with self._mutex:
            # Lanes are kept, because torch takes streams from a pool and caches memory for each of them.
            if (device, direction) not in self._lanes:
                self._lanes[device, direction] = Lane(device)
            return self._lanes[device, direction]

    def synchronize(self, device: torch.device) -> None:
        """Wait for all work queued on a device."""
        torch.cuda.synchronize(device)

    def synchronize_current(self, device: torch.device) -> None:
        """Wait only for the work queued on the caller's current stream."""
        torch.cuda.current_stream(device).synchronize()

    def wait_in_current(self, device: torch.device, event: Any) -> None:
        """Make later work of the current stream wait for an event of the caller."""
        torch.cuda.current_stream(device).wait_event(event)

    def register(self, address: int, nbytes: int) -> str:
        """Pin memory, so that devices can copy it directly. Return an empty text, or the reason for a failure."""
        try:
            code: Any = torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE)  # type: ignore[no-untyped-call]
        except (AttributeError, RuntimeError) as error:  # torch was built without CUDA, or the process was forked
            return str(error).splitlines()[0]
        if int(code) == 0:
            return ""
        # CUDA keeps the error until it is read. Read it here, so that the next kernel of the training does not raise
        # it.
        with suppress(RuntimeError):
            torch.ones(1, device="cuda")
        return f"CUDA error {int(code)}"

    def unregister(self, address: int) -> None:
        """Unpin memory before it is unmapped. Errors only occur in forked or ending processes, and are ignored."""
        with suppress(AttributeError, RuntimeError):
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


system = Cuda()


def wait(devices: Iterable[torch.device], after: object = None) -> None:
    """Wait for the work queued on devices, before the bytes of these devices are read on other streams.

    If an event `after` is given, the current streams wait only for that event, and this function returns immediately.
    """
    for device in devices:
        if after is None:
            system.synchronize(device)
        else:
            system.wait_in_current(device, after)
