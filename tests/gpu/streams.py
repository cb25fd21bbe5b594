"""Work that a device does later than the call that asked for it, and memory that is used again at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ckstore.tensors.device.streams import Cuda, Direction, Lane

_CYCLES = 200_000_000
"""About a tenth of a second of a GPU: far longer than a save needs to enqueue its first copy."""


class Queued:
    """Queues work on the current stream of a device. The CPU does it at once.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def fill(self, tensor: torch.Tensor, value: float) -> None:
        """Have `tensor` filled, after slow work on the same stream."""
        self.delay()
        tensor.fill_(value)

    def delay(self) -> None:
        """Keep the current stream busy."""
        if self._device == "cuda":
            torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]

    def reuse(self, nbytes: int) -> torch.Tensor:
        """Return memory full of other bytes, which is likely to be what was freed just before."""
        return torch.full((nbytes,), 0xEE, dtype=torch.uint8, device=self._device)


class StandIn(Cuda):
    """The processor as a device: its lanes do nothing until a mark is waited for, or the current stream must follow.

    Args:
        why_not: Why memory cannot be pinned.
        fails_at: Of all copies the one that fails, as a device does: its mark says so.

    Attributes:
        pinned: Address -> size of what is pinned now.
        pinnings: How often memory was pinned.
        copied: Bytes of each copy, in the order in which they were asked for.
        gate: While it is cleared, marks wait.
    """

    kinds = frozenset({"cpu"})

    def __init__(self, why_not: str = "", fails_at: int = -1) -> None:
        self.why_not = why_not
        self.fails_at = fails_at
        self.pinned: dict[int, int] = {}
        self.pinnings = 0
        self.copied: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self._own: dict[Direction, StandInLane] = {}
        self._mutex = threading.Lock()

    def lane(self, device: torch.device, direction: Direction) -> StandInLane:
        with self._mutex:
            return self._own.setdefault(direction, StandInLane(self))

    def synchronize(self, device: torch.device) -> None:
        for lane in self._own.values():
            lane.mark().synchronize()

    def synchronize_current(self, device: torch.device) -> None:
        """The processor has one order."""

    def wait_in_current(self, device: torch.device, event: Any) -> None:
        """The processor has one order."""

    def register(self, address: int, nbytes: int) -> str:
        if not self.why_not:
            assert address not in self.pinned
            self.pinned[address] = nbytes
            self.pinnings += 1
        return self.why_not

    def unregister(self, address: int) -> None:
        del self.pinned[address]


class StandInLane(Lane):
    """Copies that are done when they are waited for, and not before."""

    def __init__(self, system: StandIn) -> None:
        self._system = system
        self._waiting: deque[Callable[[], object]] = deque()
        self._mutex = threading.RLock()
        self._asked = self._done = 0
        self._failed = False

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def follow(self) -> None:
        """The processor has done what came before."""

    def lead(self) -> None:
        """The current stream is the caller: it goes on when the copies are done, unless the gate holds them."""
        if self._system.gate.is_set():
            self.mark().synchronize()

    def copy(self, to: torch.Tensor, found: torch.Tensor) -> None:
        self._ask(found.numel(), lambda: to.copy_(found))

    def copy_together(self, to: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        pieces = list(pieces)
        self._ask(sum(piece.numel() for piece in pieces), lambda: to.copy_(torch.cat(pieces)))

    def mark(self) -> StandInMark:
        return StandInMark(self, self._asked)

    def _ask(self, nbytes: int, act: Callable[[], object]) -> None:
        with self._mutex:
            self._system.copied.append(nbytes)
            fails = len(self._system.copied) - 1 == self._system.fails_at
            self._waiting.append(self._fail if fails else act)
            self._asked += 1

    def _fail(self) -> None:
        self._failed = True
        raise RuntimeError("CUDA error: the stand-in was told to fail")

    def run_to(self, count: int) -> None:
        self._system.gate.wait(60)
        with self._mutex:
            while self._done < count and not self._failed:
                self._waiting.popleft()()
                self._done += 1
            # As on a device, where an error stays: whichever thread waits for what failed, or comes behind it.
            if self._failed and self._done < count:
                raise RuntimeError("CUDA error: the stand-in was told to fail")


class StandInMark:
    """A place among the copies of a lane."""

    def __init__(self, lane: StandInLane, count: int) -> None:
        self._lane = lane
        self._count = count

    def synchronize(self) -> None:
        self._lane.run_to(self._count)
