"""`save`, `load` and `async_save` call `torch.distributed.checkpoint` and raise errors of ckstore."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from inspect import signature
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
from ckstore.integrations.dcp.group import FAILURES, GroupMeeting, error_of_all, is_alone, rank_in, sendable
from ckstore.integrations.dcp.optimizers import own_groups
from ckstore.integrations.dcp.planner import ComparingPlanner
from ckstore.integrations.dcp.reader import CkstoreReader
from ckstore.integrations.dcp.replicas import check_rule, digests_of
from ckstore.integrations.dcp.state_keys import own_keys, refuse_equal_texts
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
from ckstore.ranks.separate_stores import JointCheckpoint
from ckstore.store import RefLike, Store, context_of, separate_stores
from ckstore.training.conditions import Conditions, differences
from ckstore.training.hyperparameters import Settings, overwritten, settings_in

_WARNING = 30  # the level of `logging`


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
    """Save a state dict of shards from all ranks as one checkpoint. Every rank must call this.

    Args:
        store: The store, or its path. If the nodes share no filesystem, pass the store of this node. All these stores
            must have the same mirror, and the checkpoint is on the mirror when `save` returns.
        state: The result of `get_state_dict`, or any state dict that `dcp.save` accepts.
        step: Step number, which must be the same on all ranks.
        run: Name of the run, which must be the same on all ranks.
        planner: As in `dcp.save`.
        process_group: The group of the ranks. If None, all ranks. The group needs a backend for the CPU, such as gloo.
        if_ranks_differ: What to do if ranks have different values under the same name, of which only one can be saved.
            ``"error"`` refuses the save. ``"warn"`` saves one of the values, and a warning lists the names. Plain
            tensors of at most 1 MiB and all values that are not tensors are compared.
        on_failure: As in `Store.save`. It must be the same on all ranks.
        about: The options of `CkstoreWriter`, such as metrics, metadata, message, tags, parent, if_exists and retries.

    Returns:
        The new checkpoint, on every rank. With ``on_failure="warn"``, `NotSaved` on every rank if the save failed.

    Raises:
        RankMismatch: The ranks save different checkpoints, or have different values under one name. Nothing was
            published.
        RankFailed: The save failed on a rank. The error contains the causes on all failed ranks. Nothing was published.
    """
    _check_on_failure(on_failure, store)

    def save_together() -> CheckpointInfo:
        ranks = GroupMeeting(f"saving {run}@{step}", process_group)
        # An error of a single rank must occur before the first collective of DCP. Otherwise, the other ranks would wait
        # for that rank in the collective.
        writer, plain = ranks.agree(
            lambda: _begin(CkstoreWriter(store, step, run, **about), state, if_ranks_differ, process_group)
        )
        writer.timeout_s, writer.say = ranks.own_timeout_s, ranks.say
        try:
            with ranks.failing_together():
                metadata = state_dict_saver.save(
                    plain,
                    storage_writer=writer,
                    planner=planner,
                    process_group=process_group,
                    **_alone(state_dict_saver.save, ranks.is_alone),
                )
            return writer.ended(metadata.storage_data)
        finally:
            writer.close()

    if not isinstance(store, Store):
        return save_together()
    # All ranks raise the same error, so either all ranks continue or none does.
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
    """Save like `save`, but in the background. The call returns when the state is copied, and training can continue.

    Args:
        store: As in `save`.
        state: As in `save`.
        step: As in `save`.
        run: As in `save`.
        planner: As in `save`.
        process_group: As in `save`.
        if_ranks_differ: As in `save`.
        on_failure: As in `save`. With ``"warn"``, a failure is logged.
        about: The options of `CkstoreWriter`, such as metrics and tags.
        options: Options of `dcp.async_save`, such as ``async_checkpointer_type``.

    Returns:
        A future, as from `dcp.async_save`. Its ``result()`` raises the same errors as `save`. With
        ``on_failure="warn"``, ``result()`` returns `NotSaved` on every rank if the save failed.
    """
    _check_on_failure(on_failure, store)
    if on_failure == "warn" and options.get("async_stager") is not None:
        msg = "on_failure='warn' excludes async_stager, because torch then returns no future with the outcome"
        raise BadInput(msg, hint="omit one of the two")
    options = {"planner": planner, "process_group": process_group, **options}
    # Only a `Store` has a context. With ``warn``, `_check_on_failure` has refused a path.
    tolerant = context_of(store) if isinstance(store, Store) and on_failure == "warn" else None
    try:
        writer, plain = _begin(CkstoreWriter(store, step, run, **(about or {})), state, if_ranks_differ, process_group)
        writer.called()
        return _followed(state_dict_saver.async_save(plain, storage_writer=writer, **options), writer, tolerant)
    except FAILURES as error:
        if is_alone():
            raise
        # The collectives of the background save send the error to the other ranks, and the future raises it in the
        # caller.
        refused = _RefusedWriter(step, run, sendable(error))
        return _followed(state_dict_saver.async_save({}, storage_writer=refused, **options), refused, tolerant)


def _alone(call: Callable[..., object], is_alone: bool) -> dict[str, Any]:
    """Return the ``no_dist`` argument for a function of torch. It states whether this process has no group."""
    # torch 2.6 lacks this argument. That version checks for a group itself, and warns if there is none.
    return {"no_dist": is_alone} if "no_dist" in signature(call).parameters else {}


def _begin(
    writer: CkstoreWriter, state: dict[str, Any], if_ranks_differ: str, process_group: dist.ProcessGroup | None
) -> tuple[CkstoreWriter, dict[str, Any]]:
    """Set the keys and digests that torch does not pass to the writer. Return the writer and the plain state."""
    plain = _plain(state)
    writer.if_ranks_differ = check_rule(if_ranks_differ)
    writer.keys = own_keys(plain)
    writer.rank = rank_in(process_group)
    # Without a group, there is no other rank to compare with.
    writer.digests = {} if is_alone() else digests_of(plain, writer.keys)
    return writer, plain


def _check_on_failure(on_failure: OnFailure, store: object) -> None:
    check_on_failure(on_failure)
    if on_failure == "warn" and not isinstance(store, Store):
        msg = "on_failure='warn' needs a Store, which counts failed saves in a row, got a path"
        raise BadInput(msg, hint="store = Store.open(path), once")


def _followed(saving: Any, writer: CkstoreWriter, tolerant: Context | None) -> Any:
    """Return a future that also waits until the store of this node has the checkpoint.

    With `tolerant`, a failure of the storage is returned as a result and not raised, until the number of consecutive
    failed saves exceeds the limit of the store.
    """
    if not isinstance(saving, Future):  # from torch's own stagers
        return saving
    followed: Future[Any] = Future()

    def follow(saved: Future[Any]) -> None:
        try:
            metadata = saved.result()
            if isinstance(getattr(metadata, "storage_data", None), JointCheckpoint):
                writer.ended(metadata.storage_data)
            if tolerant is not None:
                tolerant.totals.worked()
            followed.set_result(metadata)
        except (CkstoreError, CheckpointException) as error:
            # Callers expect an `Exception`, which `CheckpointException` of torch is not.
            act = f"saving {writer.checkpoint_id}"
            raised = error if isinstance(error, CkstoreError) else error_of_all(act, error)
            # All ranks have the same error, so either all ranks continue or none does.
            found = None if tolerant is None else tolerated(tolerant, raised, writer.run, writer.step)
            if found is None:
                followed.set_exception(raised)
            else:
                log(_WARNING, f"{found}; the program continues ({found.in_a_row} in a row)")
                followed.set_result(found)
        except BaseException as error:  # noqa: BLE001 - the caller's `result` raises it
            followed.set_exception(error)
        finally:
            writer.close()

    saving.add_done_callback(follow)
    return followed


class _RefusedWriter(CkstoreWriter):
    """The writer of a rank that could not begin. The first collective sends the error to all ranks."""

    def __init__(self, step: int, run: str, error: Exception) -> None:
        super().__init__("", 0)
        # Store the arguments unchecked, because they may be the cause of the error.
        self.run, self.step = run, step
        self._error = error

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raise the error of this rank."""
        del is_coordinator, args, kwargs
        raise self._error


def load(
    store: Store | str | os.PathLike[str],
    state: dict[str, Any],
    ref: RefLike = "latest",
    *,
    strict: bool | str | Sequence[str] = True,
    since: LoadReport | RefLike | None = None,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> LoadReport:
    """Load a checkpoint into the tensors of `state`, in place. Every rank must call this.

    The number of ranks may differ from that of the save. Tensors of another dtype are converted.

    Args:
        store: The store, or its path.
        state: As in `dcp.load`.
        ref: The checkpoint to load. With ``latest-valid``, the previous checkpoint is loaded if a rank detects damage.
            This needs ``strict=True`` and no `planner`. Otherwise, the load fails, and `state` may contain values of
            the damaged checkpoint.
        strict: A difference is a name, shape or kind of value that differs between `state` and the checkpoint. True
            refuses a load with differences before any data is read. False leaves the values of differences unchanged
            and lists them in the report. Globs, such as ``["model"]``, refuse only differences in the matching parts.
            The absent optimizer state of a parameter that had no gradient at the save is not a difference. The report
            lists it in `fresh`. Empty dicts are not compared, because DCP has no names for them.
        since: The current content of the tensors in `state`, as the report of the previous load on this rank or as a
            checkpoint. Each rank reads only the pieces of its shards that differ. If None, everything is read. A
            report is valid until another load begins to change the tensors. If `since` is a checkpoint, pass None after
            a load that failed.
        planner: As in `dcp.load`. If given, `strict` has no effect, and the report does not list differences.
        process_group: The group of the ranks. If None, all ranks.

    Returns:
        A report of the loaded and the differing values on this rank. One warning also lists the differences. If the
        state of an optimizer is loaded, the warning also names the hyper-parameters that the checkpoint replaces, and
        states whether the number of ranks has changed.

    Raises:
        NoSuchRef: The checkpoint does not exist.
        DoesNotFit: Names, shapes or kinds differ in the same way on all ranks, or nothing fits with ``strict=False``.
        RankMismatch: The ranks found different checkpoints.
        RankFailed: The load failed on a rank, or a value does not fit on a rank. The error contains the causes on all
            failed ranks.
    """
    ranks = GroupMeeting(f"loading {ref}", process_group)
    goes_back = ranks.agree(lambda: is_latest_valid(ref)) and strict is True and planner is None
    begun: dict[str, str] = {}
    while True:
        reader, plain = ranks.agree(
            # After a load failed midway, `since` does not describe the tensors, which hold parts of another checkpoint.
            lambda: (CkstoreReader(store, ref, since=None if begun else since), _plain(state, sorted(state))),
            lambda made: context_of(made[0].store).settings.uuid,
        )
        # If the nodes have their own stores, another node may have saved the checkpoint.
        if not begun and len({*ranks.told}) > 1:
            ranks.agree(partial(list_there, reader.store, ref))
        reader.tried = begun
        try:
            return _load_once(ranks, reader, (state, plain), planner or ComparingPlanner(strict=strict), process_group)
        except CkstoreError as error:
            read = reader.info  # the same on all ranks, like the error, so either all ranks continue or none does
            if begun and isinstance(error, DoesNotFit | NoSuchRef | NoWholeCheckpoint | InUse):
                msg = f"{error.message}; but the state holds a part of {', '.join(begun.values())}, which is damaged"
                raise BadInput(msg, hint="build the state again before you use it") from error
            # An earlier checkpoint helps only if damage is the only cause on all failed ranks.
            causes = error.causes.values() if isinstance(error, RankFailed) else [error]
            is_of_damage = bool(causes) and all(isinstance(cause, DamagedBlob) for cause in causes)
            if not goes_back or read is None or read.id in begun or not is_of_damage:
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
            plain,
            storage_reader=reader,
            planner=planner,
            process_group=process_group,
            **_alone(state_dict_loader.load, ranks.is_alone),
        )
    if reader.info is None:
        raise CkstoreError(f"loading {reader.ref}: nothing was read")
    report = LoadReport(reader.info, read_bytes=reader.read_bytes)
    if isinstance(planner, ComparingPlanner):
        planner.begin_afresh()
        report = planner.report(reader.info, reader.read_bytes, reader.beyond)
        # Report the content only for this planner, because another one may have loaded only parts of the tensors.
        report = replace(report, _loaded=reader.content)
    said = [report.summary, _resumed_inexactly(reader, given, plain, ranks.who.world_size)]
    text = "; ".join(one for one in said if one)
    ranks.agree(lambda: _apply(state, plain), lambda _: text)
    # Only the first rank with this text warns, because the text is usually the same on all ranks.
    if text and text not in ranks.told[: ranks.who.rank]:
        warn(text)
    return report


def _settings_in(plain: dict[str, Any]) -> Settings:
    """Return the settings of the optimizers whose state is in a state dict."""
    return {name or "state": settings_in(groups) for name, groups in own_groups(plain)}


def _resumed_inexactly(reader: CkstoreReader, given: Settings, plain: dict[str, Any], world_size: int) -> str:
    """Return a text about the differences from the saved training, or an empty string if no optimizer was loaded."""
    if not given or reader.info is None:
        return ""
    before, now = Conditions(reader.world_size, (0,)), Conditions(world_size)
    sentences = [*differences(before, now, (0,)), *overwritten(given, _settings_in(plain), has_scheduler=False)]
    return f"resuming from {reader.info.name}: {'; '.join(sentences)}" if sentences else ""


@api_call
def list_there(store: Store, ref: RefLike) -> None:
    """Make the store of this node list the checkpoint that a ref names on the mirror."""
    context, stores = context_of(store), separate_stores()
    if stores.has_place(context):
        # A reader opens its store read-only, but the new entry must be written.
        stores.list_there(context_of(Store.open(store.path)) if context.readonly else context, ref)


def _plain(state: dict[str, Any], keys: Iterable[str] | None = None) -> dict[str, Any]:
    """Return a state in which each object is replaced by its state dict.

    The state dicts are created in the order of `keys`. DCP itself calls ``state_dict`` and ``load_state_dict`` only for
    objects at the top level of a state.

    Raises:
        BadInput: Two keys of a dict have the same text.
    """
    plain = {key: _plain_value(state[key]) for key in (state if keys is None else keys)}
    refuse_equal_texts(plain)
    return plain


def _plain_value(value: Any) -> Any:
    if isinstance(value, Stateful):
        return value.state_dict()
    if not _has_objects(value):
        return value
    if isinstance(value, dict):
        return {key: _plain_value(one) for key, one in value.items()}
    return [_plain_value(one) for one in value]


def _has_objects(value: Any) -> bool:
    """Whether a dict, a list or a tuple contains, at any depth, an object with a state dict."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(one, Stateful) or _has_objects(one) for one in inner)


def _apply(state: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Set the loaded values in a state, and pass the loaded state dicts to the objects in it."""
    for key, value in loaded.items():
        state[key] = _applied(state[key], value)


def _applied(own: Any, loaded: Any) -> Any:
    """Return a value of a state after its load. Dicts, lists and objects in it are changed in place."""
    if isinstance(own, Stateful):
        own.load_state_dict(loaded)
        return own
    if not _has_objects(own):
        return loaded
    if isinstance(own, dict):
        _apply(own, loaded)
        return own
    values = [_applied(one, value) for one, value in zip(own, loaded, strict=True)]
    if isinstance(own, tuple):
        return own._make(values) if hasattr(own, "_make") else tuple(values)
    own[:] = values
    return own
