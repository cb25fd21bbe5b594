"""`save`, `load` and `async_save`: the calls of `torch.distributed.checkpoint` in one line, with errors of ckstore."""

from __future__ import annotations

import os
import socket
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, DoesNotFit, InUse, NoSuchRef, RankFailed, RankMismatch
from ckstore.integrations.dcp.planner import ComparingPlanner
from ckstore.integrations.dcp.reader import CkstoreReader
from ckstore.integrations.dcp.writer import CkstoreWriter
from ckstore.model.checkpoint.refs import is_latest_valid
from ckstore.ops.read.load_into import LoadReport
from ckstore.ranks.meeting import is_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.store import RefLike, Store

_SEEN_TO_END_S = 10.0
"""How long a process may take to end after it has closed its connections."""
_known: weakref.WeakKeyDictionary[Any, list[tuple[str, int]]] = weakref.WeakKeyDictionary()
"""Host and process of each rank of a group, of an earlier call: a rank may be lost before it says so again."""


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
        with _failing_as_ranks(f"saving {writer.checkpoint_id}", process_group):
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
) -> LoadReport:
    """Load a checkpoint into the tensors of `state`, in place; each rank calls this, on any number of ranks.

    Tensors of another dtype are converted. What the checkpoint has and `state` has not is not loaded.

    Args:
        store: The store, or its path.
        state: As for `dcp.load`.
        ref: Which checkpoint. ``latest-valid`` goes back to the one before if a rank finds damage while it reads; but
            not without `strict` or with a `planner`, which may leave values of the damaged one in `state`.
        strict: Refuse names of `state` that the checkpoint lacks, and other shapes and kinds of values, before anything
            is read; False: they stay as they were, and the report has them.
        planner: As in `dcp.load`; `strict` does not count then, and the report does not say what fits.
        process_group: The ranks; None: all.

    Returns:
        What was loaded on this rank, and what was not.

    Raises:
        NoSuchRef: There is no such checkpoint.
        DoesNotFit: Names, shapes or kinds differ, on all ranks in the same way; or with ``strict=False`` nothing fits.
        RankMismatch: The ranks found different ones.
        RankFailed: Loading failed at a rank, or something does not fit there; the causes of all ranks are in it.
    """
    goes_back = is_latest_valid(ref) and strict and planner is None
    begun: dict[str, str] = {}
    while True:
        reader = CkstoreReader(store, ref)
        reader.tried = begun
        try:
            return _load_once(reader, state, planner or ComparingPlanner(strict=strict), process_group)
        except CkstoreError as error:
            read = reader.info  # the same on all ranks, and so is what they raise: all go on, or none
            if begun and isinstance(error, DoesNotFit | NoSuchRef | InUse):
                msg = f"{error.message}; but the state holds a part of {', '.join(begun.values())}, which is damaged"
                raise BadInput(msg, hint="build it again before you use it") from error
            if not goes_back or read is None or read.id in begun or not _is_of_damage(error):
                raise
            begun[read.id] = read.name


def _load_once(
    reader: CkstoreReader, state: dict[str, Any], planner: LoadPlanner, process_group: dist.ProcessGroup | None
) -> LoadReport:
    with _failing_as_ranks(f"loading {reader.ref}", process_group):
        state_dict_loader.load(
            state, storage_reader=reader, planner=planner, process_group=process_group, no_dist=_is_alone()
        )
    if reader.info is None:
        raise CkstoreError(f"loading {reader.ref}: nothing was read")
    if isinstance(planner, ComparingPlanner):
        return planner.report(reader.info, reader.read_bytes)
    return LoadReport(reader.info, read_bytes=reader.read_bytes)


def _is_of_damage(error: CkstoreError) -> bool:
    """Whether damage, and nothing else, is what all ranks failed with."""
    causes = error.causes.values() if isinstance(error, RankFailed) else [error]
    return bool(causes) and all(isinstance(cause, DamagedBlob) for cause in causes)


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
def _failing_as_ranks(what: str, group: dist.ProcessGroup | None) -> Iterator[None]:
    """Turn the error of `torch.distributed.checkpoint`, which ``except Exception`` does not catch, into ours.

    So also that of a backend which has lost a rank.
    """
    ranks = [] if _is_alone() else _known.get(_key(group), [])
    try:
        ranks = _everyone(group)
        yield
    except CheckpointException as error:
        raise _of_ranks(what, {rank: cause[0] for rank, cause in error.failures.items()}) from None
    except RuntimeError as error:
        if not _is_of_group(error):
            raise
        raise _lost(what, ranks, error) from error


def _everyone(group: dist.ProcessGroup | None) -> list[tuple[str, int]]:
    """Return the host and the process of each rank."""
    if _is_alone():
        return []
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, (socket.gethostname(), os.getpid()), group=group)
    _known[_key(group)] = told
    return told


def _key(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    return dist.group.WORLD if group is None else group


def _is_of_group(error: RuntimeError) -> bool:
    """Whether a process group raised it: gloo has no class of its own for what it cannot send."""
    return isinstance(error, dist.DistError) or any(name in str(error).lower() for name in ("gloo", "nccl"))


def _lost(what: str, ranks: list[tuple[str, int]], error: RuntimeError) -> RankFailed:
    """Return the error for what a collective raised, which names the ranks of this host that have ended."""
    here = socket.gethostname()
    deadline_s = time.monotonic() + (_SEEN_TO_END_S if ranks else 0)
    while True:  # the connections of a process are closed a moment before it is seen to have ended
        gone = [
            (rank, host, pid) for rank, (host, pid) in enumerate(ranks) if is_gone({"host": host, "pid": pid}, here)
        ]
        if gone or time.monotonic() >= deadline_s:
            break
        time.sleep(0.05)
    ended = [f"rank {rank} ({host}, process {pid}) has ended" for rank, host, pid in gone]
    unknown = "one was lost before the ranks had told each other which processes they are"
    said = ", ".join(ended) or (f"{'no rank of this host has ended' if ranks else unknown}; see what the others say")
    msg = f"{what}: the ranks lost one another: {said}: {error}"
    hint = "start all ranks again; ckstore log says whether the checkpoint was published before"
    return RankFailed(
        msg, hint=hint, causes={rank: CkstoreError(why) for (rank, *_), why in zip(gone, ended, strict=True)}
    )


def _but(hint: str, cause: BaseException) -> str:
    """Return what an error says, but for a hint that is given anyhow."""
    return cause.message if isinstance(cause, CkstoreError) and cause.hint == hint else str(cause)


def _of_ranks(what: str, causes: dict[int, BaseException]) -> CkstoreError:
    ours = [cause for cause in causes.values() if isinstance(cause, CkstoreError)]
    if (
        len(ours) == len(causes)
        and len({(type(one), str(one)) for one in ours}) == 1
        and (len(causes) > 1 or isinstance(ours[0], RankMismatch | DoesNotFit))
    ):
        return ours[0]  # all say the same, or it is about all of them
    hint = ours[0].hint if ours else "the causes are in .causes"
    said = "; ".join(
        f"rank {rank}: {type(cause).__name__}: {_but(hint, cause)}" for rank, cause in sorted(causes.items())
    )
    return RankFailed(f"{what} failed on all ranks, because of {said}", hint=hint, causes=causes)
