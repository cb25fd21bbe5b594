"""A data loader: what describes it, and what of its place can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckstore.tensors.kinds import is_stateful


def description(loader: Any) -> dict[str, Any]:
    """Return what describes a data loader, as metadata: another one of these gives other batches."""
    found: dict[str, Any] = {"class": type(loader).__name__}
    for name in ("batch_size", "num_workers", "drop_last"):
        value = getattr(loader, name, None)
        if value is None:  # of what accelerate makes only the sampler of batches knows
            value = getattr(getattr(loader, "batch_sampler", None), name, None)
        if isinstance(value, (bool, int)):
            found[name] = value
    dataset = getattr(loader, "dataset", None)
    if dataset is not None:
        found["dataset"] = type(dataset).__name__
        found["dataset_length"] = length_of(dataset)
    sampler = getattr(loader, "sampler", None)
    if sampler is not None:
        found["sampler"] = type(sampler).__name__
    return found


def length_of(dataset: Any) -> int | None:
    """Return how many samples a data set has; None: it does not say, as a stream."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # a stream
        return None


def place(loader: Any) -> object:
    """Return what to store of a data loader: the loader itself where it has a state, else its generator and epoch."""
    if is_stateful(loader):
        return loader
    generator = getattr(loader, "generator", None)
    epoch = getattr(getattr(loader, "sampler", None), "epoch", None)
    return {
        "generator": None if generator is None else generator.get_state(),
        "epoch": epoch if isinstance(epoch, int) else None,
    }


def set_place(loader: Any, state: Mapping[str, Any]) -> None:
    """Give a data loader without a state of its own what `place` returned."""
    generator, epoch = state.get("generator"), state.get("epoch")
    if generator is not None and getattr(loader, "generator", None) is not None:
        loader.generator.set_state(generator)
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if epoch is not None and set_epoch is not None:
        set_epoch(epoch)
