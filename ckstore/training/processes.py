"""The ranks (processes) of a training: the rank of this process, the values of each rank, and operations of all ranks.

Other modules need not know how processes are numbered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ckstore.errors import CkstoreError, RankFailed

T = TypeVar("T")


def _group() -> Any:
    """Return `torch.distributed` if this process is in a group of several processes, otherwise None."""
    # Do not import the module, because a script without a group should not wait for the import.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() > 1 else None


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    group = _group()
    return (0, 1) if group is None else (group.get_rank(), group.get_world_size())


def world_size() -> int:
    """Return the number of processes."""
    return rank_and_world()[1]


def is_first() -> bool:
    """Whether this process is rank 0, which issues warnings for all ranks."""
    return rank_and_world()[0] == 0


@dataclass(frozen=True, slots=True)
class _Failure:
    """The value that a rank sends to `gather` if a call has failed on this rank.

    Attributes:
        act: The name of the call.
        text: The error as text, because errors of other libraries need not be picklable.
    """

    act: str
    text: str


def gather(value: object) -> dict[int, Any]:
    """Return the `value` of each rank, by rank. All ranks must call this.

    Raises:
        RankFailed: Another rank has raised an error in `failing_together`.
    """
    gathered = _gather(value)
    failed = {rank: other for rank, other in gathered.items() if isinstance(other, _Failure)}
    if failed:
        errors = "; ".join(f"{failure.act} failed on rank {rank}: {failure.text}" for rank, failure in failed.items())
        raise RankFailed(errors, hint="correct the cause on that rank, then repeat the call on all ranks")
    return gathered


def _gather(value: object) -> dict[int, Any]:
    group = _group()
    if group is None:
        return {0: value}
    gathered: list[Any] = [None] * group.get_world_size()
    group.all_gather_object(gathered, value)
    return dict(enumerate(gathered))


@contextmanager
def failing_together(act: str) -> Iterator[None]:
    """Send an error of the block to the other ranks, in which the next `gather` then raises it.

    Without this, the other ranks would wait in `gather` until the timeout of the process group. All ranks must use this
    together.
    """
    try:
        yield
    except Exception as error:
        # If another rank has died, the other ranks get the error of the backend. This rank knows the cause.
        with suppress(RuntimeError):
            _gather(_Failure(act, f"{type(error).__name__}: {error}"))
        raise


def own(values: Mapping[str, T]) -> T | None:
    """Return the value of this process from values of `gather` whose keys were converted to text."""
    return values.get(str(rank_and_world()[0]))


def by_key(values: Mapping[int, T]) -> dict[str, T]:
    """Return the values of `gather` by their keys in a captured state."""
    return {_key(rank): value for rank, value in values.items()}


def own_key(ranks: Collection[int]) -> str:
    """Return the key of the values that this process uses in a captured state. `ranks` are the captured ranks."""
    # A rank without captured states uses those of rank 0, so that states that are equal on all ranks remain equal.
    rank = rank_and_world()[0]
    return _key(rank if rank in ranks else 0)


def _key(rank: int) -> str:
    return f"rank-{rank}"


def wait_for_all() -> None:
    """Return when every rank has called this."""
    group = _group()
    if group is not None:
        group.barrier()


def once_for_all(act: Callable[[], T]) -> T:
    """Call `act` on rank 0, and return its result or raise its error on every rank. All ranks must call this."""
    group = _group()
    if group is None:
        return act()
    outcome: list[Any] = [None, None]
    failure: BaseException | None = None
    torch_checkpoint = sys.modules.get("torch.distributed.checkpoint.api")
    # `CheckpointException` of torch is not an `Exception`.
    errors = (Exception,) if torch_checkpoint is None else (Exception, torch_checkpoint.CheckpointException)
    # The other ranks wait in the broadcast below. If rank 0 did not send an error, they would wait until the timeout.
    if group.get_rank() == 0:
        try:
            outcome[0] = act()
        except errors as error:  # all ranks raise it below
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
