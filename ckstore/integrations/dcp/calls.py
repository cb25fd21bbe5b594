"""`save`, `load` and `async_save`: the calls of `torch.distributed.checkpoint` in one line, with errors of ckstore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, overload

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.stateful import Stateful

from ckstore.errors import (
    BadInput,
    CkstoreError,
    DamagedBlob,
    DoesNotFit,
    InUse,
    NoSuchRef,
    NoWholeCheckpoint,
    RankFailed,
)
from ckstore.integrations.dcp.group import FAILURES, GroupMeeting, causes_of, is_alone, sendable
from ckstore.integrations.dcp.optimizers import own_groups
from ckstore.integrations.dcp.planner import ComparingPlanner
from ckstore.integrations.dcp.reader import CkstoreReader
from ckstore.integrations.dcp.replicas import check_rule, digests_of
from ckstore.integrations.dcp.state_keys import own_keys
from ckstore.integrations.dcp.writer import CkstoreWriter
from ckstore.interpreter import log
from ckstore.model.checkpoint.refs import is_latest_valid
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.not_saved import NotSaved
from ckstore.model.settings.patience import OnFailure, check_on_failure
from ckstore.ops.api_calls import api_call
from ckstore.ops.context import Context
from ckstore.ops.notices import warn
from ckstore.ops.read.target_load import LoadReport
from ckstore.ops.save.tolerance import or_not_saved, tolerated
from ckstore.ranks.meeting import failed_on_all
from ckstore.ranks.nodes_without_shared_store import Joined, list_from_mirror, mirror_of
from ckstore.store import RefLike, Store, context_of
from ckstore.training.conditions import Conditions, differences
from ckstore.training.hyperparameters import Settings, overwritten, settings_in

_WARNING = 30  # of `logging`


@overload
def save(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    step: int,
    run: str = "main",
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    if_ranks_differ: str = "error",
    on_failure: Literal["raise"] = "raise",
    **about: Any,
) -> CheckpointInfo: ...


@overload
def save(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    step: int,
    run: str = "main",
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    if_ranks_differ: str = "error",
    on_failure: OnFailure,
    **about: Any,
) -> CheckpointInfo | NotSaved: ...


def save(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    step: int,
    run: str = "main",
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    if_ranks_differ: str = "error",
    on_failure: OnFailure = "raise",
    **about: Any,
) -> CheckpointInfo | NotSaved:
    """Save a state dict of shards from all ranks as one checkpoint; each rank calls this.

    Args:
        store: The store, or its path. Where nodes have no filesystem in common: the store of this node, whose mirror
            all of them have; the checkpoint is at the mirror when this returns.
        state: What `get_state_dict` gives, or any state dict that `dcp.save` takes.
        step: Step number; the same on all ranks.
        run: Name of the run; the same on all ranks.
        planner: As in `dcp.save`.
        process_group: The ranks; None: all. It needs a backend for the CPU, such as gloo.
        if_ranks_differ: What to do if ranks have different values under one name, of which only one can be saved.
            ``"error"`` refuses the save. ``"warn"`` saves one and names them in a warning. Plain tensors of at most
            1 MiB are compared, and all values that are not tensors.
        on_failure: As in `Store.save`; the same on all ranks.
        about: As in `CkstoreWriter`: metrics, metadata, message, tags, parent, if_exists, retries …

    Returns:
        The new checkpoint, on every rank. With ``on_failure="warn"``, `NotSaved` on every rank if the save failed.

    Raises:
        RankMismatch: The ranks do not mean the same checkpoint, or have different values under one name.
        RankFailed: The save failed at a rank; the causes of all ranks are in it. After both nothing was published.
    """
    _check_on_failure(on_failure, store)

    def save_together() -> CheckpointInfo:
        ranks = GroupMeeting(f"saving {run}@{step}", process_group)
        # Errors of a single rank must occur before the first collective of DCP, in which the other ranks would wait for
        # it.
        writer, plain = ranks.agree(lambda: _begin(CkstoreWriter(store, step, run, **about), state, if_ranks_differ))
        writer.timeout_s, writer.say = ranks.own_timeout_s, ranks.say
        try:
            with ranks.failing_together():
                metadata = state_dict_saver.save(
                    plain, storage_writer=writer, planner=planner, process_group=process_group, no_dist=ranks.is_alone
                )
            return writer.ended(metadata.storage_data)
        finally:
            writer.close()

    if not isinstance(store, Store):
        return save_together()
    # All ranks raise the same, and so all of them go on or none.
    return or_not_saved(context_of(store), save_together, on_failure, run, step)


def async_save(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    step: int,
    run: str = "main",
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    if_ranks_differ: str = "error",
    on_failure: OnFailure = "raise",
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
        if_ranks_differ: As in `save`.
        on_failure: As in `save`. With ``"warn"`` a failure is logged.
        about: What `save` takes by name: metrics, tags …
        options: Of `dcp.async_save`, such as ``async_checkpointer_type``.

    Returns:
        A future, as `dcp.async_save` returns one. Its ``result()`` raises the same errors as `save`; with
        ``on_failure="warn"`` it returns `NotSaved`, on every rank, if the save failed.
    """
    _check_on_failure(on_failure, store)
    if on_failure == "warn" and options.get("async_stager") is not None:
        msg = "on_failure='warn' together with async_stager: torch returns no future that tells how the save ended"
        raise BadInput(msg, hint="leave one of the two out")
    options = {"planner": planner, "process_group": process_group, **options}
    # Only where it counts: a path would be opened for it.
    tolerant = context_of(store) if isinstance(store, Store) and on_failure == "warn" else None
    try:
        writer, plain = _begin(CkstoreWriter(store, step, run, **(about or {})), state, if_ranks_differ)
        return _followed(state_dict_saver.async_save(plain, storage_writer=writer, **options), writer, tolerant)
    except FAILURES as error:
        if is_alone():
            raise
        # The others are on their way to the collectives of the background, and learn of it there; so does the caller.
        refused = _RefusedWriter(step, run, sendable(error))
        return _followed(state_dict_saver.async_save({}, storage_writer=refused, **options), refused, tolerant)


def _begin(writer: CkstoreWriter, state: dict[str, Any], if_ranks_differ: str) -> tuple[CkstoreWriter, dict[str, Any]]:
    """Return the plain state, and its writer with the keys and digests that torch does not pass on."""
    plain = _plain(state)
    writer.if_ranks_differ = check_rule(if_ranks_differ)
    writer.keys = own_keys(plain)
    # Without a group there is no other rank to compare with.
    writer.digests = {} if is_alone() else digests_of(plain)
    return writer, plain


def _check_on_failure(on_failure: OnFailure, store: object) -> None:
    check_on_failure(on_failure)
    if on_failure == "warn" and not isinstance(store, Store):
        msg = "on_failure='warn' needs a Store, which counts the saves that fail in a row; got a path"
        raise BadInput(msg, hint="store = Store.open(path), once")


def _followed(saving: Any, writer: CkstoreWriter, tolerant: Context | None) -> Any:
    """Return a future that also waits until the store of this node has the checkpoint.

    With a `tolerant` store a failure of the storage is its result, as long as the training may continue without it.
    """
    if not isinstance(saving, Future):  # of torch's own stagers
        return saving
    followed: Future[Any] = Future()

    def follow(saved: Future[Any]) -> None:
        try:
            metadata = saved.result()
            if isinstance(getattr(metadata, "storage_data", None), Joined):
                writer.ended(metadata.storage_data)
            if tolerant is not None:
                tolerant.totals.worked()
            followed.set_result(metadata)
        except (CkstoreError, CheckpointException) as error:
            raised: CkstoreError
            if isinstance(error, CkstoreError):
                raised = error
            else:  # callers expect an `Exception`, which that class is not
                raised = failed_on_all(f"saving {writer.checkpoint_id}", causes_of(error))
            # All ranks have the same error, and so all of them go on or none.
            found = None if tolerant is None else tolerated(tolerant, raised, writer.run, writer.step)
            if found is None:
                followed.set_exception(raised)
            else:
                log(_WARNING, f"{found}; the program goes on ({found.in_a_row} in a row)")
                followed.set_result(found)
        except BaseException as error:  # noqa: BLE001 - the caller's `result` raises it
            followed.set_exception(error)
        finally:
            writer.close()

    saving.add_done_callback(follow)
    return followed


class _RefusedWriter(CkstoreWriter):
    """The writer of a rank that could not begin: all ranks learn why by the first collective, and nothing is saved."""

    def __init__(self, step: int, run: str, error: Exception) -> None:
        super().__init__("", 0)
        # As they were given: what is wrong may be these.
        self.run, self.step = run, step
        self._error = error

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raise it."""
        del is_coordinator, args, kwargs
        raise self._error


def load(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    ref: RefLike = "latest",
    *,
    strict: bool | str | Sequence[str] = True,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> LoadReport:
    """Load a checkpoint into the tensors of `state`, in place; each rank calls this, on any number of ranks.

    Tensors of another dtype are converted.

    Args:
        store: The store, or its path.
        state: As for `dcp.load`.
        ref: Which checkpoint. ``latest-valid`` goes back to the one before if a rank finds damage while it reads; but
            not without `strict` or with a `planner`, which may leave values of the damaged one in `state`.
        strict: If True, names that the checkpoint lacks, names that only the checkpoint has, and other shapes and kinds
            of values are refused before anything is read. If False, they are left alone, and the report has them. If
            globs, such as ``["model"]``, they are refused in these parts only. What an optimizer keeps for a parameter
            that had no gradient when the checkpoint was saved is not missing: it is in the report's `fresh`.
        planner: As in `dcp.load`; `strict` does not count then, and the report does not say what fits.
        process_group: The ranks; None: all.

    Returns:
        A report of the loaded and the differing values on this rank. Differences are also one warning. If the state of
        an optimizer is loaded, the warning also names hyper-parameters that the checkpoint replaces, and another number
        of ranks.

    Raises:
        NoSuchRef: There is no such checkpoint.
        DoesNotFit: Names, shapes or kinds differ, on all ranks in the same way; or with ``strict=False`` nothing fits.
        RankMismatch: The ranks found different ones.
        RankFailed: Loading failed at a rank, or something does not fit there; the causes of all ranks are in it.
    """
    ranks = GroupMeeting(f"loading {ref}", process_group)
    goes_back = ranks.agree(lambda: is_latest_valid(ref)) and strict is True and planner is None
    begun: dict[str, str] = {}
    while True:
        reader, plain = ranks.agree(
            lambda: (CkstoreReader(store, ref), _plain(state, sorted(state))),
            lambda made: context_of(made[0].store).settings.uuid,
        )
        if not begun and len({*ranks.told}) > 1:  # stores of their own: another node may have saved it
            ranks.agree(partial(_look_at_mirror, reader.store, ref))
        reader.tried = begun
        try:
            return _load_once(ranks, reader, (state, plain), planner or ComparingPlanner(strict=strict), process_group)
        except CkstoreError as error:
            read = reader.info  # the same on all ranks, and so is what they raise: all go on, or none
            if begun and isinstance(error, DoesNotFit | NoSuchRef | NoWholeCheckpoint | InUse):
                msg = f"{error.message}; but the state holds a part of {', '.join(begun.values())}, which is damaged"
                raise BadInput(msg, hint="build it again before you use it") from error
            if not goes_back or read is None or read.id in begun or not _is_of_damage(error):
                raise
            begun[read.id] = read.name


def _load_once(
    ranks: GroupMeeting,
    reader: CkstoreReader,
    states: tuple[dict[str, Any], dict[str, Any]],
    planner: LoadPlanner,
    process_group: dist.ProcessGroup | None,
) -> LoadReport:
    state, plain = states
    given = _settings_in(plain)
    with ranks.failing_together():
        state_dict_loader.load(
            plain, storage_reader=reader, planner=planner, process_group=process_group, no_dist=ranks.is_alone
        )
    if reader.info is None:
        raise CkstoreError(f"loading {reader.ref}: nothing was read")
    report = LoadReport(reader.info, read_bytes=reader.read_bytes)
    if isinstance(planner, ComparingPlanner):
        planner.begin_afresh()
        report = planner.report(reader.info, reader.read_bytes, reader.beyond)
    said = [report.summary, _resumed_inexactly(reader, given, plain, ranks.who.world_size)]
    text = "; ".join(one for one in said if one)
    ranks.agree(lambda: _apply(state, plain), lambda _: text)
    # Only the first rank with this text warns: most often it is the same on all ranks.
    if text and text not in ranks.told[: ranks.who.rank]:
        warn(text)
    return report


def _settings_in(plain: dict[str, Any]) -> Settings:
    """Return the settings of the optimizers whose state is in a state dict."""
    return {name or "state": settings_in(groups) for name, groups in own_groups(plain)}


def _resumed_inexactly(reader: CkstoreReader, given: Settings, plain: dict[str, Any], world_size: int) -> str:
    """Say what differs from the training that was saved, if an optimizer was loaded; empty if nothing does."""
    if not given or reader.info is None:
        return ""
    before, now = Conditions(reader.world_size, (0,)), Conditions(world_size)
    sentences = [*differences(before, now, (0,)), *overwritten(given, _settings_in(plain), has_scheduler=False)]
    return f"resuming from {reader.info.name}: {'; '.join(sentences)}" if sentences else ""


@api_call
def _look_at_mirror(store: Store, ref: RefLike) -> None:
    """List in the store of this node what a ref names at its mirror."""
    context = context_of(store)
    if mirror_of(context) is not None:
        # A reader's store is open for reading only, and what is listed is written.
        list_from_mirror(context_of(Store.open(store.path)) if context.readonly else context, ref)


def _plain(state: dict[str, Any], keys: Iterable[str] | None = None) -> dict[str, Any]:
    """Return a state with the state dicts of its objects, which are asked for them in the order of `keys`."""
    there = ((key, state[key]) for key in (state if keys is None else keys))
    return {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in there}


def _apply(state: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Give a state what was loaded, as DCP itself does."""
    for key, value in loaded.items():
        if isinstance(state[key], Stateful):
            state[key].load_state_dict(value)
        else:
            state[key] = value


def _is_of_damage(error: CkstoreError) -> bool:
    """Whether damage, and nothing else, is what all ranks failed with."""
    causes = error.causes.values() if isinstance(error, RankFailed) else [error]
    return bool(causes) and all(isinstance(cause, DamagedBlob) for cause in causes)
