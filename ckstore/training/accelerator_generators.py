"""The global random generators of torch for GPUs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def in_host_memory() -> Any:
    """Return a context in which torch makes tensors in host memory, regardless of the default device of the program."""
    import torch

    return torch.device("cpu")


def generators() -> Sequence[Any]:
    """Return the generators. Before CUDA is initialized, the sequence is empty. torch must be imported."""
    found: Sequence[Any] = sys.modules["torch"].cuda.default_generators
    return found


def states() -> list[Any] | None:
    """Return the states of the generators, or None if this process does not use GPUs. torch must be imported."""
    torch = sys.modules["torch"]
    # Without this check, reading the states would initialize CUDA, which needs hundreds of MB on each GPU.
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    found: list[Any] = torch.cuda.get_rng_state_all()
    return found


def set_states(saved: Sequence[Any]) -> None:
    """Set the generators of the GPUs that this process sees to these states."""
    import torch

    if torch.cuda.is_available():
        for device, state in enumerate(saved[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
