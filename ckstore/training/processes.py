"""Which process of how many this is, and what is asked of all of them."""

from __future__ import annotations

import sys
from typing import Any


def _group() -> Any:
    """Return `torch.distributed` if this process is in a group of several."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and how many there are."""
    group = _group()
    return (0, 1) if group is None else (group.get_rank(), group.get_world_size())


def of_all_ranks(value: object) -> dict[int, Any]:
    """Return the value that each rank gives here, by rank; all ranks must call it."""
    group = _group()
    if group is None:
        return {0: value}
    gathered: list[Any] = [None] * group.get_world_size()
    group.all_gather_object(gathered, value)
    return dict(enumerate(gathered))
