"""The rank of this process, the number of processes, and operations that involve all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ckstore.errors import CkstoreError

T = TypeVar("T")


def _group() -> Any:
    """Return `torch.distributed` if this process is in a group of several."""
    # Do not import it, because a script without a group should not wait for the import.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    group = _group()
    return (0, 1) if group is None else (group.get_rank(), group.get_world_size())


def of_all_ranks(value: object) -> dict[int, Any]:
    """Return the `value` of each rank, by rank. All ranks must call this."""
    group = _group()
    if group is None:
        return {0: value}
    gathered: list[Any] = [None] * group.get_world_size()
    group.all_gather_object(gathered, value)
    return dict(enumerate(gathered))


def wait_for_all() -> None:
    """Return when every rank has called this."""
    group = _group()
    if group is not None:
        group.barrier()


def _failures() -> tuple[type[BaseException], ...]:
    """Return the classes of all possible errors. `CheckpointException` of torch is not an `Exception`."""
    checkpoints = sys.modules.get("torch.distributed.checkpoint.api")
    return (Exception,) if checkpoints is None else (Exception, checkpoints.CheckpointException)


def from_rank_zero(act: Callable[[], T]) -> T:
    """Call `act` on rank 0, and return its result or raise its error on every rank. All ranks must call this."""
    group = _group()
    if group is None:
        return act()
    outcome: list[Any] = [None, None]
    failure: BaseException | None = None
    # The other ranks wait in the broadcast below. Without the error, they would wait until its timeout.
    if group.get_rank() == 0:
        try:
            outcome[0] = act()
        except _failures() as error:  # the other ranks wait, and must raise it as well
            failure = error
            kept = isinstance(error, CkstoreError)
            outcome[1] = error if kept else CkstoreError(f"rank 0: {type(error).__name__}: {error}")
    group.broadcast_object_list(outcome, src=0)
    if failure is not None:
        raise failure
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result
