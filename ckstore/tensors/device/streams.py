"""What is asked of CUDA: streams of our own, marks in them, and pinned memory. Tests put a stand-in in its place."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal, Protocol

import torch

Direction = Literal["from", "to"]
# On every device: a state may lie on several, and one arena takes all of it (cudaHostRegisterPortable).
_PORTABLE = 1


class StreamMark(Protocol):
    """A place in a lane."""

    def synchronize(self) -> None:
        """Wait until everything before it is done."""


class Lane:
    """Copies between a device and memory, one after another, beside what the device computes."""

    # Any thread may call its methods.

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def active(self) -> AbstractContextManager[object]:
        """Give a context for the calls below; work of torch in it goes to this lane."""
        return torch.cuda.stream(self._stream)

    def follow(self) -> None:
        """Let what comes next wait for what the current stream of the caller has been given."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def lead(self) -> None:
        """Let what the current stream of the caller is given from now on wait for this lane."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def copy(self, to: torch.Tensor, found: torch.Tensor) -> None:
        """Copy flat bytes; the call does not wait if the memory is pinned."""
        to.copy_(found, non_blocking=True)

    def copy_together(self, to: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        """Copy flat pieces, one behind another, in one transfer."""
        # Freed at once: torch gives the memory to what this stream does next, which is behind the copy.
        to.copy_(torch.cat(list(pieces)), non_blocking=True)

    def mark(self) -> StreamMark:
        """Return the place behind what was asked for so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


class Cuda:
    """What there is once in a process."""

    kinds = frozenset({"cuda"})

    def __init__(self) -> None:
        self._lanes: dict[tuple[torch.device, Direction], Lane] = {}
        self._mutex = threading.Lock()

    def lane(self, device: torch.device, direction: Direction) -> Lane:
        """Return the lane of a device; one for each direction, since the card copies both ways at once."""
        with self._mutex:
            # Kept: torch has a pool of streams, and memory that it caches for each of them.
            if (device, direction) not in self._lanes:
                self._lanes[device, direction] = Lane(device)
            return self._lanes[device, direction]

    def synchronize(self, device: torch.device) -> None:
        """Wait for everything that was queued on a device."""
        torch.cuda.synchronize(device)

    def synchronize_current(self, device: torch.device) -> None:
        """Wait for what the caller's current stream was given, and for no other."""
        torch.cuda.current_stream(device).synchronize()

    def wait_in_current(self, device: torch.device, event: Any) -> None:
        """Let what the current stream is given from now on wait for an event of the caller."""
        torch.cuda.current_stream(device).wait_event(event)

    def register(self, address: int, nbytes: int) -> str:
        """Pin memory, so that a device copies it by itself; return why that cannot be, or nothing."""
        try:
            code: Any = torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE)  # type: ignore[no-untyped-call]
        except (AttributeError, RuntimeError) as error:  # a build of torch without it; a process that was forked
            return str(error).splitlines()[0]
        if int(code) == 0:
            return ""
        # CUDA keeps the error until it is asked for: without this, the next kernel of the training would raise it.
        with suppress(RuntimeError):
            torch.ones(1, device="cuda")
        return f"CUDA error {int(code)}"

    def unregister(self, address: int) -> None:
        """Unpin memory, before it is unmapped; errors are of a process that ends, or was forked."""
        with suppress(AttributeError, RuntimeError):
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


system = Cuda()


def is_accelerator(device: torch.device) -> bool:
    """Whether memory there is copied by lanes."""
    return device.type in system.kinds
