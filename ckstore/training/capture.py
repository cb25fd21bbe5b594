"""Capture the state of a training run as one value for `Store.save`, with a record of what is in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from ckstore.tensors.stateful import is_stateful
from ckstore.tracebacks import short_tracebacks
from ckstore.training.conditions import Conditions
from ckstore.training.loader import description, place
from ckstore.training.processes import of_all_ranks, rank_and_world
from ckstore.training.rng import random_states

VERSION = 1
RECORD = "training"
"""The key of the record in the state."""
PARTS = ("model", "optimizer", "scheduler", "scaler", "dataloader")


@short_tracebacks
def capture(
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    dataloader: Any = None,
    rng: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the state of a run, to be given to `Store.save`; `restore` is its counterpart.

    With several processes every rank calls it, since the random states of all are gathered; one of them saves.

    Args:
        model: A module, a dict of modules, or a state dict. Wrappers of `torch.compile` and
            `DistributedDataParallel` are taken off, so a checkpoint does not depend on them.
        optimizer: An optimizer, or a list or dict of several; so for `scheduler` and `scaler`.
        scheduler: Of the learning rate.
        scaler: A `GradScaler`.
        dataloader: One with ``state_dict`` is stored with its place. Of another the state of its ``generator`` and the
            epoch of its sampler are stored, and the report of `restore` says that it begins an epoch.
        rng: Whether to store the random states of Python, NumPy, torch and the GPUs of each rank.
        extra: Anything else that a state may hold, such as the step.
    """
    _, world_size = rank_and_world()
    given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    parts: dict[str, Any] = {name: unwrapped(part) for name, part in given.items() if part is not None}
    if dataloader is not None:
        parts["dataloader"] = place(dataloader)
    states = of_all_ranks(random_states()) if rng else {}
    conditions = Conditions(
        world_size=world_size,
        rng_ranks=tuple(sorted(states)),
        rng_kinds=tuple(states[0]) if states else (),
        dataloader={} if dataloader is None else description(dataloader),
        dataloader_resumes=dataloader is None or is_stateful(dataloader),
    )
    record = {
        "version": VERSION,
        "present": [name for name in PARTS if name in parts],
        "missing": [name for name in PARTS if name not in parts],
        "extra": bool(extra),
        "conditions": conditions.to_json(),
    }
    if states:
        parts["rng"] = {rng_name(rank): state for rank, state in states.items()}
    # One string: a part of a state that is loaded by its name comes without the empty lists in it.
    return {RECORD: json.dumps(record), **parts, **({"extra": dict(extra)} if extra else {})}


def rng_name(rank: int) -> str:
    """Return the key of the random states of a rank."""
    return f"rank-{rank}"


def unwrapped(part: Any) -> Any:
    """Return a module without the wrappers of `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    if isinstance(part, dict):
        return {name: unwrapped(value) for name, value in part.items()}
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(part, torch.nn.Module):
        return part
    parallel = torch.nn.parallel
    while True:
        if isinstance(part, (parallel.DataParallel, parallel.DistributedDataParallel)):
            part = part.module
        elif isinstance(getattr(part, "_orig_mod", None), torch.nn.Module):
            part = part._orig_mod  # noqa: SLF001 - the one way to what torch.compile wraps
        else:
            return part
