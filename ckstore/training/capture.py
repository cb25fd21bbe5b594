"""Capture the state of a training run as one value for `Store.save`, with a record of the captured parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.names import CAPTURED
from ckstore.ops.notices import warn
from ckstore.tensors.kinds import is_stateful, is_tensor
from ckstore.tensors.refusals import type_name
from ckstore.training.conditions import Conditions
from ckstore.training.generators import find_generators, has_only_generators, kind_of_generator, states_of
from ckstore.training.loader import begin, check_loader, description, losses, place
from ckstore.training.processes import by_key, failing_together, gather, is_first, world_size
from ckstore.training.rng import random_states

VERSION = 2
RECORD = CAPTURED
"""The key of the record in the state."""
PARTS = ("model", "optimizer", "scheduler", "scaler", "dataloader")
"""The parts that most runs have. The record lists which of these a checkpoint lacks."""
PRIVATE = "parts"
"""In the random states of a rank, the states of the generators that belong to parts are stored under this key."""
_warned: set[str] = set()
"""The keys of the warnings that this process has issued."""


def capture(
    model: Any = None,
    optimizer: Any = None,
    *,
    scheduler: Any = None,
    scaler: Any = None,
    dataloader: Any = None,
    rng: bool = True,
    extra: Mapping[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Return the state of a run for `Store.save`. `restore` is its counterpart.

    Save the result before the training continues. The tensors in it are those of the model and the optimizer, not
    copies. In contrast, the random states and the position in the data are those at the time of the call. With several
    processes, every rank must call `capture`, because it gathers the random states of all ranks. Only one rank saves
    the result.

    Args:
        model: A module, a dict of modules, or a state dict. Wrappers of `torch.compile` and
            `DistributedDataParallel` are removed, so a checkpoint does not depend on them.
        optimizer: An optimizer, or a list or dict of several. The same applies to `scheduler` and `scaler`.
        scheduler: The scheduler of the learning rate.
        scaler: A `GradScaler`.
        dataloader: A data loader. If it has ``state_dict``, its position in the data is stored, otherwise only the
            epoch of its sampler. A `CkstoreWarning` names each aspect that will not continue exactly from the current
            position. Each warning is issued once.
        rng: Whether to store the random states of Python, NumPy, torch and the GPUs of each rank. Random generators
            that belong to a part, and the position of the data loader, are always stored. Without `rng`, they are
            stored only for the rank that saves.
        extra: Any other values that a state may hold, such as the step.
        parts: Any other part by its name, such as ``ema=ema``. It may be any object that `restore` can load in place,
            or a random generator. A value into which nothing can be loaded, such as ``epoch=3``, is added to `extra`.

    Raises:
        BadInput: A part has the name of another entry of the state or of an argument of `restore`, or accelerate
            prepared the data loader without `use_stateful_dataloader`.
        RankFailed: `capture` failed on another rank. This is raised only with `rng`.
    """
    with failing_together("capture") if rng else nullcontext():
        # None means that the run has no such part, so scripts can always pass all parts.
        parts = given_parts(parts)
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, **parts}
        values = {name: part for name, part in parts.items() if not loads_in_place(part)}
        if taken := {"store", "ref", "strict"} & (parts.keys() - values.keys()):
            raise BadInput(f"{min(taken)} is an argument of restore", hint="give this part another name")
        if twice := {*(extra or {})} & values.keys():
            raise BadInput(f"{min(twice)} is a part and also in extra", hint="give it once")
        held = {name: unwrapped(part) for name, part in given.items() if part is not None and name not in values}
        extra = {**(extra or {}), **values}
        if dataloader is not None:
            check_loader(dataloader)
            begin(dataloader)
        searched = {**held, **({} if dataloader is None else {"dataloader": dataloader})}
        # Omit parts that are generators, because `states_of` returns the states of all generators.
        held = {name: part for name, part in held.items() if not has_only_generators(part)}
        generators, is_whole = find_generators(searched)
        private = states_of(generators)
        own = [*held.values()]
        lost = [] if dataloader is None else [*losses(dataloader, own)]
        if not is_whole:
            lost.append("the parts refer to too many objects, and not all were searched for random generators")
        for sentence in lost:
            warn_once(sentence, f"a run that is resumed from this checkpoint will differ: {sentence}")
        of_process = random_states() if rng else {}
        mine = {**of_process, PRIVATE: private}
        place_of_mine = dataloader.state_dict() if is_stateful(dataloader) else None
    # One rank saves the states of all ranks. After a resume, each rank draws its own numbers and reads its own samples.
    of_all = gather((mine, place_of_mine)) if rng else {0: (mine, place_of_mine)}
    conditions = Conditions(
        world_size=world_size(),
        rng_kinds=tuple(of_process),
        dataloader={} if dataloader is None else description(dataloader),
        lost=tuple(lost),
    ).with_rng_of(of_all if rng else ())
    record = {
        "version": VERSION,
        "present": sorted(searched, key=_by_place),
        "missing": [name for name in PARTS if name not in searched],
        "extra": bool(extra),
        "ranks": sorted(of_all),
        "loader": None if dataloader is None else {**place(dataloader, own), "stateful": is_stateful(dataloader)},
        "conditions": conditions.to_json(),
    }
    held["rng"] = by_key({number: state for number, (state, _) in of_all.items()})
    if is_stateful(dataloader):
        held["dataloader"] = by_key({number: of_loader for number, (_, of_loader) in of_all.items()})
    # The record is one string, because a load that selects names omits empty lists.
    return {RECORD: json.dumps(record), **held, **({"extra": extra} if extra else {})}


def given_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional parts that are not None."""
    if RECORD in parts:
        raise BadInput(f"{RECORD} is the name of the record in the state", hint="give this part another name")
    return {name: part for name, part in parts.items() if part is not None}


def loads_in_place(part: Any) -> bool:
    """Whether `restore` can load into a part: a tensor, a generator, a stateful object, or a container with one.

    All items of a tuple must be such values, because a tuple cannot be changed.
    """
    if isinstance(part, tuple):
        return bool(part) and all(map(loads_in_place, part))
    return _has_live(part)


def _has_live(value: Any) -> bool:
    if is_stateful(value) or is_tensor(value) or kind_of_generator(value) is not None:
        return True
    items = value.values() if isinstance(value, dict) else value
    return isinstance(value, dict | list | tuple) and any(map(_has_live, items))


def _by_place(name: str) -> int:
    return PARTS.index(name) if name in PARTS else len(PARTS)


def warn_of_place(loader: Any, instead: str) -> None:
    """Warn once for each class of data loader that does not save its position. `instead` is advice to the user."""
    kind = type_name(type(loader))
    msg = f"{kind} does not save its position, so a run resumed within an epoch begins the epoch again; {instead}"
    warn_once(kind, msg)


def warn_once(key: str, message: str) -> None:
    """Warn once for each key, on one rank only. Otherwise each capture on each rank would repeat the warning."""
    if key not in _warned and is_first():
        _warned.add(key)
        warn(message)


def unwrapped(part: Any) -> Any:
    """Return a module without the wrappers of `torch.compile`, `DataParallel` and `DistributedDataParallel`.

    A dict with wrapped modules is copied. Any other dict is returned without a copy.
    """
    if isinstance(part, dict):
        inner = {name: unwrapped(value) for name, value in part.items()}
        return part if all(inner[name] is value for name, value in part.items()) else inner
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(part, torch.nn.Module):
        return part
    parallel = torch.nn.parallel
    # Wrappers are nested in any order, such as DDP of a compiled module, or a compiled DDP module.
    while True:
        if isinstance(part, (parallel.DataParallel, parallel.DistributedDataParallel)):
            part = part.module
        elif isinstance(getattr(part, "_orig_mod", None), torch.nn.Module):
            part = part._orig_mod  # noqa: SLF001 - the only access to the compiled module
        else:
            return part
