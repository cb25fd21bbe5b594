"""Capture the state of a training run as one value for `Store.save`, with a record of what is in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.names import CAPTURED
from ckstore.ops.notices import warn
from ckstore.tensors.kinds import is_stateful, is_tensor
from ckstore.tensors.refusals import type_name
from ckstore.tracebacks import short_tracebacks
from ckstore.training.conditions import Conditions
from ckstore.training.generators import find_generators, kind_of_generator, states_of
from ckstore.training.loader import begin, check_loader, description, losses, place
from ckstore.training.processes import of_all_ranks, rank_and_world
from ckstore.training.rng import random_states

VERSION = 2
RECORD = CAPTURED
"""The key of the record in the state."""
PARTS = ("model", "optimizer", "scheduler", "scaler", "dataloader")
"""Those that most runs have; a record says which of them a checkpoint lacks."""
PRIVATE = "parts"
"""The key, beside the random states of a rank, of those of generators that belong to its parts."""
_warned: set[str] = set()
"""The keys of the warnings that this process has given."""


@short_tracebacks
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
    """Return the state of a run, to be given to `Store.save`; `restore` is its counterpart.

    With several processes every rank calls it, since the random states of all are gathered; one of them saves.

    Args:
        model: A module, a dict of modules, or a state dict. Wrappers of `torch.compile` and
            `DistributedDataParallel` are taken off, so a checkpoint does not depend on them.
        optimizer: An optimizer, or a list or dict of several; so for `scheduler` and `scaler`.
        scheduler: Of the learning rate.
        scaler: A `GradScaler`.
        dataloader: One with ``state_dict`` is stored with its place, and another with the epoch of its sampler. A
            `CkstoreWarning` names, once each, what will not continue exactly from its current place.
        rng: Whether to store the random states of Python, NumPy, torch and the GPUs of each rank. Random generators
            that belong to a part, and the place of the data loader, are stored in any case; without `rng` only those
            of the rank that saves.
        extra: Anything else that a state may hold, such as the step.
        parts: Any other part by its name, such as ``ema=ema``: what `restore` loads in place, as it does a model; also
            a random generator. A value into which nothing can be loaded, such as ``epoch=3``, goes to `extra`.

    Raises:
        BadInput: A part has the name of another entry of the state, or accelerate prepared the data loader.
    """
    _, world_size = rank_and_world()
    # None means "this run has none", so scripts can pass all parts always.
    parts = given_parts(parts)
    given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, **parts}
    values = {name: part for name, part in parts.items() if not loads_in_place(part)}
    if twice := {*(extra or {})} & values.keys():
        raise BadInput(f"{min(twice)} is in extra, too", hint="give it once")
    held = {name: unwrapped(part) for name, part in given.items() if part is not None and name not in values}
    extra = {**(extra or {}), **values}
    if dataloader is not None:
        check_loader(dataloader)
        begin(dataloader)
    searched = {**held, **({} if dataloader is None else {"dataloader": dataloader})}
    # Their states are among those of all generators of parts.
    held = {name: part for name, part in held.items() if kind_of_generator(part) is None}
    generators, is_whole = find_generators(searched)
    private = states_of(generators)
    lost = [] if dataloader is None else [*losses(dataloader)]
    if not is_whole:
        lost.append("the parts refer to too many objects: not all were searched for random generators")
    for sentence in lost:
        warn_once(sentence, f"a run that is resumed from this checkpoint will differ: {sentence}")
    of_process = random_states() if rng else {}
    mine = {**of_process, PRIVATE: private}
    place_of_mine = dataloader.state_dict() if is_stateful(dataloader) else None
    # Gathered: one rank saves, and each rank draws its own numbers, and reads its own samples, after a resume.
    ranks = of_all_ranks((mine, place_of_mine)) if rng else {0: (mine, place_of_mine)}
    conditions = Conditions(
        world_size=world_size,
        rng_ranks=tuple(sorted(ranks)) if rng else (),
        rng_kinds=tuple(of_process),
        dataloader={} if dataloader is None else description(dataloader),
        lost=tuple(lost),
    )
    record = {
        "version": VERSION,
        "present": sorted(searched, key=_by_place),
        "missing": [name for name in PARTS if name not in searched],
        "extra": bool(extra),
        "ranks": sorted(ranks),
        "loader": None if dataloader is None else {**place(dataloader), "stateful": is_stateful(dataloader)},
        "conditions": conditions.to_json(),
    }
    held["rng"] = {rank_name(rank): state for rank, (state, _) in ranks.items()}
    if is_stateful(dataloader):
        held["dataloader"] = {rank_name(rank): of_loader for rank, (_, of_loader) in ranks.items()}
    # One string: a part of a state that is loaded by its name comes without the empty lists in it.
    return {RECORD: json.dumps(record), **held, **({"extra": extra} if extra else {})}


def given_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of other names that are not None."""
    if RECORD in parts:
        raise BadInput(f"{RECORD} is the name of the record in the state", hint="give this part another name")
    return {name: part for name, part in parts.items() if part is not None}


def loads_in_place(part: Any) -> bool:
    """Whether a value can be loaded into: an object with a state, a tensor, a generator, or a container of such."""
    if isinstance(part, dict | list | tuple):
        return any(map(loads_in_place, part.values() if isinstance(part, dict) else part))
    return is_stateful(part) or is_tensor(part) or kind_of_generator(part) is not None


def _by_place(name: str) -> int:
    return PARTS.index(name) if name in PARTS else len(PARTS)


def warn_of_place(loader: Any, instead: str) -> None:
    """Warn once for each class of data loaders that keep no place in their data; `instead`: what does."""
    kind = type_name(type(loader))
    msg = f"{kind} keeps no place in its data: a run that is resumed within an epoch begins it again; {instead}"
    warn_once(kind, msg)


def warn_once(key: str, message: str) -> None:
    """Warn once for each key, and by one rank: each capture of each rank would repeat it through the training."""
    if key not in _warned and rank_and_world()[0] == 0:
        _warned.add(key)
        warn(message)


def rank_name(rank: int) -> str:
    """Return the key of what belongs to a rank."""
    return f"rank-{rank}"


def unwrapped(part: Any) -> Any:
    """Return a module without the wrappers of `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    if isinstance(part, dict):
        return {name: unwrapped(value) for name, value in part.items()}
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(part, torch.nn.Module):
        return part
    parallel = torch.nn.parallel
    # Wrappers are nested in any order: DDP of a compiled module, or the other way round.
    while True:
        if isinstance(part, (parallel.DataParallel, parallel.DistributedDataParallel)):
            part = part.module
        elif isinstance(getattr(part, "_orig_mod", None), torch.nn.Module):
            part = part._orig_mod  # noqa: SLF001 - the one way to what torch.compile wraps
        else:
            return part
