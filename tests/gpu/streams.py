"""Work that a device does later than the call that asked for it, and memory that is used again at once."""

from __future__ import annotations

import torch

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
