"""`save`, `load` and `async_save`: the calls of `torch.distributed.checkpoint` in one line, with errors of ckstore."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from ckstore.errors import CkstoreError, RankFailed, RankMismatch
from ckstore.integrations.dcp.reader import CkstoreReader
from ckstore.integrations.dcp.writer import CkstoreWriter

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.store import RefLike, Store


def save(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    step: int,
    run: str = "main",
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    **about: Any,
) -> CheckpointInfo:
    """Save a state dict of shards from all ranks as one checkpoint; each rank calls this.

    Args:
        store: The store, or its path.
        state: What `get_state_dict` gives, or any state dict that `dcp.save` takes.
        step: Step number; the same on all ranks.
        run: Name of the run; the same on all ranks.
        planner: As in `dcp.save`.
        process_group: The ranks; None: all. It needs a backend for the CPU, such as gloo.
        about: As in `CkstoreWriter`: metrics, metadata, message, tags, parent, if_exists, force.

    Returns:
        What was saved, on every rank.

    Raises:
        RankMismatch: The ranks do not mean the same checkpoint.
        RankFailed: The save failed at a rank; the causes of all ranks are in it. After both nothing was published.
    """
    writer = CkstoreWriter(store, step, run, **about)
    try:
        with _failing_as_ranks(f"saving {writer.checkpoint_id}"):
            state_dict_saver.save(
                state, storage_writer=writer, planner=planner, process_group=process_group, no_dist=_is_alone()
            )
        return _told(writer.info, process_group)
    finally:
        writer.close()


def async_save(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    step: int,
    run: str = "main",
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    about: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """As `save`, in the background. The state is copied before this returns; then training may go on.

    Args:
        store: As in `save`.
        state: As in `save`.
        step: As in `save`.
        run: As in `save`.
        planner: As in `save`.
        process_group: As in `save`.
        about: What `save` takes by name: metrics, tags …
        options: Of `dcp.async_save`, such as ``async_checkpointer_type``.

    Returns:
        What `dcp.async_save` does: a future whose ``result()`` raises what went wrong, mostly a `CheckpointException`.
    """
    writer = CkstoreWriter(store, step, run, **(about or {}))
    return state_dict_saver.async_save(
        state, storage_writer=writer, planner=planner, process_group=process_group, **options
    )


def load(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    ref: RefLike = "latest",
    *,
    strict: bool = True,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> CheckpointInfo:
    """Load a checkpoint into the tensors of `state`, in place; each rank calls this, on any number of ranks.

    Args:
        store: The store, or its path.
        state: As for `dcp.load`.
        ref: Which checkpoint.
        strict: Refuse a name of `state` that the checkpoint lacks; False: it stays as it was.
        planner: As in `dcp.load`; `strict` does not count then.
        process_group: The ranks; None: all.

    Returns:
        The checkpoint that was loaded.

    Raises:
        NoSuchRef: There is no such checkpoint.
        RankMismatch: The ranks found different ones.
        RankFailed: Loading failed at a rank; the causes of all ranks are in it.
    """
    reader = CkstoreReader(store, ref)
    planner = planner or DefaultLoadPlanner(allow_partial_load=not strict)
    with _failing_as_ranks(f"loading {ref}"):
        state_dict_loader.load(
            state, storage_reader=reader, planner=planner, process_group=process_group, no_dist=_is_alone()
        )
    if reader.info is None:
        raise CkstoreError(f"loading {ref}: nothing was read")
    return reader.info


def _is_alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())


def _told(info: CheckpointInfo | None, group: dist.ProcessGroup | None) -> CheckpointInfo:
    """Return what the coordinator published, on every rank."""
    told = [info]
    if not _is_alone():
        source = 0 if group is None else dist.get_global_rank(group, 0)
        dist.broadcast_object_list(told, src=source, group=group)
    if told[0] is None:
        raise CkstoreError("the coordinator did not say what it published")
    return told[0]


@contextmanager
def _failing_as_ranks(what: str) -> Iterator[None]:
    """Turn the error of `torch.distributed.checkpoint`, which ``except Exception`` does not catch, into ours."""
    try:
        yield
    except CheckpointException as error:
        raise _of_ranks(what, {rank: cause[0] for rank, cause in error.failures.items()}) from None


def _of_ranks(what: str, causes: dict[int, BaseException]) -> CkstoreError:
    ours = [cause for cause in causes.values() if isinstance(cause, CkstoreError)]
    if (
        len(ours) == len(causes)
        and len({(type(one), str(one)) for one in ours}) == 1
        and (len(causes) > 1 or isinstance(ours[0], RankMismatch))
    ):
        return ours[0]  # all say the same, or it is about all of them
    said = "; ".join(f"rank {rank}: {type(cause).__name__}: {cause}" for rank, cause in sorted(causes.items()))
    hint = ours[0].hint if ours else "the causes are in .causes"
    return RankFailed(f"{what} failed on all ranks, because of {said}", hint=hint, causes=causes)
