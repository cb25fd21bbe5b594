"""Restore a state that `capture` captured, and report the aspects that will not continue exactly."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ckstore.errors import BadInput, DamagedBlob, DoesNotFit, NoSuchRef
from ckstore.model.brief import brief
from ckstore.model.checkpoint.refs import is_latest_valid
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.words import printable
from ckstore.ops.notices import warn
from ckstore.store import RefLike, Store
from ckstore.tensors.kinds import is_stateful, is_tensor
from ckstore.tensors.refusals import type_name
from ckstore.training.capture import PRIVATE, RECORD, VERSION, given_parts, loads_in_place, unwrapped
from ckstore.training.conditions import Conditions, differences
from ckstore.training.generators import find_generators, has_only_generators, set_generators
from ckstore.training.hyperparameters import overwritten, settings_of
from ckstore.training.loader import check_loader, description, first_private, place_misfit, reading, set_place
from ckstore.training.newest import untried
from ckstore.training.processes import failing_together, gather, own_key, world_size
from ckstore.training.rng import random_states, set_random_states


@brief()
@dataclass(frozen=True, slots=True)
class ResumeReport:
    """The result of `restore`. Its text lists the aspects that will not continue exactly, as does a `CkstoreWarning`.

    Attributes:
        info: The checkpoint.
        present: The restored parts.
        missing: The parts that were passed to `restore` and that the checkpoint lacks. They are unchanged.
        unused: The parts of the checkpoint that were not passed to `restore`.
        inexact: The aspects that will not continue exactly, one sentence each. If it is empty, ckstore knows of no
            difference from a run without an interruption.
        extra: The `extra` values of `capture`, and its parts into which nothing can be loaded.
        overwritten: The hyper-parameters of your optimizers that the checkpoint replaced, one sentence each. The run
            continues with the values of the checkpoint.
    """

    info: CheckpointInfo
    present: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    inexact: tuple[str, ...]
    extra: dict[str, Any] = field(default_factory=dict)
    overwritten: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"  {sentence}" for sentence in (*self.inexact, *self.overwritten)]
        return "\n".join(map(printable, [f"{self.info.name} restored" + (", but:" if lines else ""), *lines]))


class _Receiver:
    """Receives a state of a checkpoint unchanged."""

    def __init__(self) -> None:
        self.state: Any = None

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state, because no state was loaded yet."""
        return {}

    def load_state_dict(self, state: object) -> None:
        """Keep the loaded state."""
        self.state = state


class _RandomStates(_Receiver):
    """Receives the random states of a rank, and immediately sets the generators that belong to parts."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        super().__init__()
        self.generators, _ = find_generators(parts)
        self.private: dict[str, Any] = {}
        self.differing: tuple[str, ...] = ()
        self._parts = parts

    def load_state_dict(self, state: Any) -> None:
        """Keep the random states of the process, and set the generators that belong to parts."""
        super().load_state_dict(state)
        # Ignore the generators of parts that were not passed to `restore`.
        of_parts = state.get(PRIVATE, {}).items()
        self.private = {path: one for path, one in of_parts if path.partition(".")[0] in self._parts}
        self.differing = set_generators(self.generators, self.private)


def restore(
    store: Store,
    ref: RefLike = "latest-valid",
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    dataloader: Any = None,
    rng: bool = True,
    strict: bool = True,
    **parts: Any,
) -> ResumeReport:
    """Load a captured state into the objects of a run, in place. Every rank must call this.

    Names, shapes and dtypes are compared before any object is changed. Random states are set last. If the ranks restore
    different checkpoints, because one of them skipped a damaged checkpoint, the report of each rank lists the
    checkpoints. If `restore` fails on one rank, it raises an error on all ranks.

    Args:
        store: The store.
        ref: The checkpoint to restore. As in `Store.load`, ``latest-valid`` skips damaged checkpoints.
        model: The object that was passed to `capture`. A module, or a module in a dict, need not have the same wrapper
            as in `capture`. A module in a list must have the same wrapper. This applies to all parts.
        optimizer: See `model`.
        scheduler: See `model`.
        scaler: See `model`.
        dataloader: See `model`.
        rng: Whether to set the random states of this rank.
        strict: If False, a part that the checkpoint lacks is reported and left unchanged, and a data loader that cannot
            continue at its position begins a new epoch.
        parts: Any other part by its name in `capture`, such as ``ema=ema``.

    Raises:
        NoSuchRef, AmbiguousRef: The ref names no checkpoint, or several checkpoints.
        BadInput: The checkpoint does not contain the result of `capture`, nothing can be loaded into a part, or
            accelerate prepared the data loader without `use_stateful_dataloader`.
        DoesNotFit: The checkpoint lacks a part, or a part differs from its object.
        DamagedBlob: Data is damaged, and the objects may hold a part of the state. With ``latest-valid``, the previous
            checkpoint is restored instead. If the previous one lacks one of the parts, `BadInput` is raised.
        RankFailed: `restore` failed on another rank. The objects of this rank may already hold the restored state.
    """
    with failing_together("restore"):
        if isinstance(store, str | os.PathLike | None):
            raise BadInput(f"restore takes an open store, got {store!r}", hint="restore(Store.open(path), …)")
        parts = given_parts(parts)
        plain = next((name for name, part in parts.items() if not loads_in_place(part)), None)
        if plain is not None:
            msg = f"{plain}: nothing can be loaded into a value of type {type_name(type(parts[plain]))}"
            raise BadInput(msg, hint=f'leave it out: restore(…).extra["{plain}"] has the captured value')
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, **parts}
        given = {name: part for name, part in given.items() if part is not None}
        report = _restore(store, ref, given, dataloader, rng=rng, strict=strict)
    info = report.info
    # A rank may have skipped a checkpoint that is damaged only in the data of that rank, or on its node.
    others = {number: other for number, other in gather(info).items() if other.id != info.id}
    differing = (f"rank {number} restored {other.name}, and this rank {info.name}" for number, other in others.items())
    report = replace(report, inexact=(*differing, *report.inexact))
    if report.inexact or report.overwritten:
        warn(f"{info.name} restored, but: {'; '.join((*report.inexact, *report.overwritten))}")
    return report


def _restore(
    store: Store, ref: RefLike, given: dict[str, Any], dataloader: Any, *, rng: bool, strict: bool
) -> ResumeReport:
    """Restore on this rank."""
    wanted = {name: unwrapped(part) for name, part in given.items()}
    if dataloader is not None:
        check_loader(dataloader)
        wanted["dataloader"] = dataloader
    tried: set[str] = set()
    begun: dict[str, str] = {}
    while True:
        info = untried(store, ref, tried)
        try:
            report = _restore_from(store, info, wanted, begun, rng=rng, strict=strict)
        except DamagedBlob:
            if not is_latest_valid(ref) or info.id in tried:
                raise
            tried.add(info.id)
        else:
            for name, part in given.items():
                _set_values(part, wanted[name])
            return report


def _restore_from(
    store: Store, info: CheckpointInfo, wanted: dict[str, Any], begun: dict[str, str], *, rng: bool, strict: bool
) -> ResumeReport:
    """Restore from one checkpoint, and record its name in `begun` for each restored part."""
    record, before = _record(store, info)
    present = tuple(record["present"])
    missing = tuple(name for name in wanted if name not in present)
    _refuse_missing(info, missing, begun, strict=strict)
    restored = tuple(name for name in present if name in wanted)
    parts: dict[str, Any] = {name: wanted[name] for name in restored}
    loader = parts.get("dataloader")
    random, place, extra = _RandomStates(parts), _Receiver(), _Receiver()
    source = own_key(record["ranks"])
    # Set the generators of parts first. A part that has a generator in its own state sets it again afterwards.
    target: dict[str, Any] = {"rng": {source: random}} if record["ranks"] else {}
    target |= {name: part for name, part in parts.items() if name != "dataloader" and not has_only_generators(part)}
    # A loader with a state cannot use the position of a loader without one, and vice versa. The report names both
    # classes.
    resumes = loader is not None and record["loader"]["stateful"] == is_stateful(loader)
    misfit = place_misfit(loader, before.dataloader) if resumes else ""
    if misfit and strict:
        msg = f"{info.name} was not loaded: {misfit}"
        raise DoesNotFit(
            msg, hint="create the data loader with the same workers; strict=False begins a new epoch instead"
        )
    resumes = resumes and not misfit
    if resumes and record["version"] == 1:
        target["dataloader"] = loader if is_stateful(loader) else place
    elif resumes and is_stateful(loader):
        target["dataloader"] = {source: loader}
    if record["extra"]:
        # Use a receiver, because `load_into` fills existing objects, and there are none for extra values.
        target["extra"] = extra
    # Record the parts before the load, which may change them as soon as it begins.
    begun |= dict.fromkeys(restored, info.name)
    cast: Mapping[str, str] = {}
    given = settings_of(parts.get("optimizer"))
    if target:
        # Read only these names, and not, for example, the random states of other ranks.
        by_source = {name for name in ("rng", "dataloader") if type(target.get(name)) is dict}
        select = [f"{name}.{source}" if name in by_source else name for name in target]
        cast = _load_into(store, target, info, select)
    if "scheduler" in restored and "optimizer" not in restored:
        _set_rates(wanted["scheduler"])
    if record["version"] == 1 and loader is not None:
        record["loader"]["epoch"] = (place.state or {}).get("epoch")
        random.load_state_dict({**(random.state or {}), PRIVATE: first_private(place.state or {})})
    if resumes:
        set_place(loader, record["loader"], random.generators, random.private)
    now = Conditions(
        world_size=world_size(),
        rng_kinds=tuple(random_states()),
        dataloader={} if loader is None else description(loader),
    )
    if rng and before.has_own_rng:
        # Do this last, because creating loaders and loading objects draws random numbers.
        set_random_states(random.state)
    unused = tuple(name for name in present if name not in wanted)
    inexact = (
        *(f"the checkpoint holds no {name}" for name in missing),
        *(f"the checkpoint has a part {name}, which was not passed to restore" for name in unused),
        *differences(before, now, rng=rng),
        *(reading(loader, record["loader"], before.world_size, now.world_size) if resumes else ()),
        *random.differing,
        *(f"{name} was converted: {how}" for name, how in cast.items()),
    )
    has_scheduler = wanted.get("scheduler") is not None
    replaced = tuple(overwritten(given, settings_of(parts.get("optimizer")), has_scheduler=has_scheduler))
    return ResumeReport(info, restored, missing, unused, inexact, extra.state or {}, replaced)


def _load_into(store: Store, target: dict[str, Any], info: CheckpointInfo, select: list[str]) -> Mapping[str, str]:
    """Load the names in `select`, and return the converted values."""
    try:
        return store.load_into(target, info, select=select).cast
    except DoesNotFit as error:
        # The hint of `load_into` names arguments that `restore` does not have.
        error.hint = f"store.load_into loads a part that differs: {error.hint}"
        raise


def _refuse_missing(info: CheckpointInfo, missing: tuple[str, ...], begun: dict[str, str], *, strict: bool) -> None:
    """Raise if a checkpoint lacks a part that may hold data of a damaged checkpoint, or, with `strict`, any part."""
    for name in missing:
        # The object may hold some data of a damaged checkpoint, so the training would continue with mixed states.
        if name in begun:
            msg = f"{info.name} holds no {name}, and your {name} may hold a part of {begun[name]}, which is damaged"
            raise BadInput(msg, hint=f"build all parts again, then restore {info.name}")
    if missing and strict:
        msg = f"{info.name} holds no {' and no '.join(missing)}, nothing was loaded"
        hint = "strict=False restores the other parts and reports the missing ones"
        raise DoesNotFit(msg, hint=hint, missing=missing)


def _set_values(part: Any, loaded: Any) -> None:
    """Copy loaded plain values from the unwrapped copy of a dict to the dict of the program."""
    if part is loaded or not isinstance(part, dict):
        return
    for name, value in loaded.items():
        own = part.get(name)
        if isinstance(own, dict) and isinstance(value, dict):
            _set_values(own, value)
        elif value is not unwrapped(own):
            part[name] = value


def _set_rates(schedulers: Any) -> None:
    """Set the learning rates in the optimizers of schedulers to those of the checkpoint."""
    # A new scheduler sets the rate of its optimizer to the rate of the first step, and loading the state of the
    # scheduler does not change that rate. Only a restore of the optimizer, in the same call or later, corrects it.
    if isinstance(schedulers, dict | list | tuple):
        for one in schedulers.values() if isinstance(schedulers, dict) else schedulers:
            _set_rates(one)
        return
    groups = getattr(getattr(schedulers, "optimizer", None), "param_groups", ())
    for group, rate in zip(groups, getattr(schedulers, "_last_lr", ()), strict=False):
        if is_tensor(group["lr"]):
            group["lr"].fill_(float(rate))
        else:
            group["lr"] = float(rate)


def _record(store: Store, info: CheckpointInfo) -> tuple[dict[str, Any], Conditions]:
    try:
        record = json.loads(store.load(info, select=RECORD)[RECORD])
        if record["version"] > VERSION:
            msg = f"{info.name} was captured by a newer ckstore"
            raise BadInput(msg, hint="install that version")
        before = Conditions.from_json(record["conditions"])
    except (NoSuchRef, LookupError, TypeError, json.JSONDecodeError) as error:
        msg = f"{info.name} was not captured by ckstore.training.capture"
        raise BadInput(msg, hint="store.load_into(target, ref) loads any state") from error
    if record["version"] == 1:
        resumes = before.dataloader_resumes
        loader = {"epoch": None, "begun": resumes, "stateful": resumes, "read": 0}
        record |= {"ranks": record["conditions"]["rng_ranks"], "loader": loader}
    return record, before
