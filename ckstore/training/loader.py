"""A data loader: what describes it, where it is in its data, and what of that cannot be kept."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from types import GeneratorType
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.words import counted
from ckstore.tensors.kinds import is_stateful
from ckstore.tensors.refusals import type_name
from ckstore.training.generators import set_generators
from ckstore.training.stateful_dataset import StatefulDataset

_CURE = "ckstore.training.ElasticSampler reads each once"
_INSTALL = "ckstore.integrations.accelerate.install(accelerator, store)"
_TORCHDATA = "torchdata.stateful_dataloader"
_NODES = "torchdata.nodes"
_NODES_MOST = 10_000
STATEFUL = f"{_TORCHDATA}.StatefulDataLoader"


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


def check_loader(loader: Any) -> None:
    """Refuse a loader that has the methods of a state, and no state.

    Raises:
        BadInput: accelerate prepared it.
    """
    if _is_prepared(loader) and not loader.use_stateful_dataloader:
        raise BadInput("the data loader was prepared by accelerate, and has no state", hint=f"save with {_INSTALL}")


def _is_prepared(loader: Any) -> bool:
    kind = getattr(sys.modules.get("accelerate.data_loader"), "DataLoaderAdapter", None)
    # By its type: as an instance it answers for the loader that it wraps.
    return kind is not None and issubclass(type(loader), kind)


def begin(loader: Any) -> None:
    """Have the loader of torchdata make its iterator, if it has none, as its first ``state_dict()`` does.

    This draws random numbers, so it comes before random states are read or set.
    """
    if _is_of(_TORCHDATA, "StatefulDataLoader", loader):
        loader.state_dict()  # the next `iter` returns that iterator


def place(loader: Any) -> dict[str, Any]:
    """Return what a loader does not keep in a state of its own.

    Returns:
        ``epoch`` of its sampler, or None; ``begun``: whether it keeps an iterator; ``read``: how many samples of an
        epoch this rank has read; 0 between two epochs, or if unknown.
    """
    epoch = getattr(getattr(loader, "sampler", None), "epoch", None)
    return {
        "epoch": epoch if isinstance(epoch, int) else None,
        "begun": _kept_iterator(loader) is not None,
        "read": _batches_read(loader) * (getattr(loader, "batch_size", None) or 0),
    }


def place_misfit(loader: Any, saved: Mapping[str, Any]) -> str:
    """Say why a loader cannot take the place of one that had this description; empty: it can."""
    now = getattr(loader, "num_workers", None)
    if not _is_of(_TORCHDATA, "StatefulDataLoader", loader) or saved.get("num_workers") == now:
        return ""
    # Its place is made up of the places of its workers; it would raise an AssertionError at the next batch.
    return f"the data loader has {now} workers, and its place was saved with {saved.get('num_workers')}"


def reading(loader: Any, place: Mapping[str, Any], before_world_size: int, world_size: int) -> Iterator[str]:
    """Count the samples of an unfinished epoch that will be read again, or never, on this number of ranks."""
    shares = _is_of("torch.utils.data", "DistributedSampler", getattr(loader, "sampler", None))
    if not place["read"] or (is_stateful(loader) and (before_world_size == world_size or not shares)):
        return
    count = length_of(loader.dataset) or sys.maxsize
    # All ranks together have read the first samples of one order, or each has read some of its own.
    read = min(place["read"] * (before_world_size if shares else 1), count)
    begin = min(place["read"] * world_size, count)
    whose = "the epoch" if shares or before_world_size == 1 else "the epoch on each rank"
    if not is_stateful(loader):
        yield f"{counted(read, 'sample')} of {whose} will be read a second time"
    elif read > begin:
        yield f"{counted(read - begin, 'sample')} of {whose} will be read a second time; {_CURE}"
    elif read < begin:
        yield f"{counted(begin - read, 'sample')} of {whose} will never be read; {_CURE}"


def set_place(loader: Any, place: Mapping[str, Any], generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Set the place of a loader, and the states of its generators after it has drawn from them.

    Args:
        loader: Its own state was loaded, if it has one.
        place: What `place` returned.
        generators: All private generators, by path.
        states: Their states.
    """
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if place["epoch"] is not None and set_epoch is not None:
        set_epoch(place["epoch"])
    if not place["begun"]:
        return
    # A loader draws a seed, and maybe an order, when its iterator is made. So that is done here, before the states are
    # set with which the saved run continued.
    begin(loader)
    if not is_stateful(loader) and _has_persistent_workers(loader):
        iter(loader)  # the next `iter` begins an epoch with the same workers, and draws no seed
    own = (getattr(loader, "generator", None), getattr(getattr(loader, "sampler", None), "generator", None))
    paths = [path for path, generator in generators.items() if any(generator is one for one in own) and path in states]
    set_generators({path: generators[path] for path in paths}, {path: states[path] for path in paths})


def first_private(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of generators in what a checkpoint of version 1 has of a loader without a state of its own."""
    generator = state.get("generator")
    return {} if generator is None else {"dataloader.generator": {"kind": "torch cpu", "state": generator}}


def is_of_torchdata(loader: Any) -> bool:
    """Whether a loader is a `StatefulDataLoader`."""
    return _is_of(_TORCHDATA, "StatefulDataLoader", loader)


def losses(loader: Any) -> Iterator[str]:
    """Say what of a data loader that has begun cannot be kept where it is now, and the cure; one sentence each."""
    if _is_prepared(loader):
        yield (
            "the data loader was prepared by accelerate, which reads a batch ahead and counts epochs by itself; "
            f"save with {_INSTALL}"
        )
    elif _is_of(_TORCHDATA, "StatefulDataLoader", loader):
        yield from _losses_of_torchdata(loader)
    elif _is_of(_NODES, "Loader", loader):
        yield from _losses_of_nodes(loader)
    elif not is_stateful(loader):
        # Where a loader that is not of torch is in its data, it does not say.
        if is_inside_epoch(loader) or not _is_of("torch.utils.data", "DataLoader", loader):
            yield (
                "the data loader keeps no place in the data: it begins an epoch, and was saved inside one; "
                f"save after the loop over it, or use {STATEFUL}"
            )
        if _has_persistent_workers(loader) and place(loader)["begun"] and not _draws_nothing(loader.dataset):
            yield (
                "the worker processes of the data loader go on through all epochs, and new ones begin with other "
                "random numbers; use persistent_workers=False"
            )


def _losses_of_torchdata(loader: Any) -> Iterator[str]:
    if loader.num_workers > 0 and not loader.in_order:
        yield "the data loader has in_order=False, and does not know which batches it gave; use in_order=True"
    is_inside = is_inside_epoch(loader)
    placeless = _placeless(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    if is_inside and placeless is not None:
        yield (
            f"{type_name(type(placeless))} does not know which samples it gave: the rest of the epoch has another "
            "order; use shuffle=True instead, or a sampler with state_dict"
        )
    has_new_workers = loader.num_workers > 0 and (is_inside or loader.persistent_workers)
    if has_new_workers and not is_stateful(loader.dataset) and not _draws_nothing(loader.dataset):
        yield (
            f"random numbers that {type_name(type(loader.dataset))} draws in the worker processes begin again as at "
            "the start of the epoch; give the data loader ckstore.training.StatefulDataset(dataset)"
        )


def _losses_of_nodes(loader: Any) -> Iterator[str]:
    """Name the samplers whose order a loader of torchdata's nodes does not keep in its state."""
    waiting, seen = [loader.root], set[int]()
    while waiting and len(seen) < _NODES_MOST:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, list | tuple | dict):
            waiting += node.values() if isinstance(node, dict) else node
        elif _is_of(_NODES, "BaseNode", node):
            waiting += vars(node).values()
        sampler = getattr(node, "sampler", None) if _is_of(_NODES, "SamplerWrapper", node) else None
        # It skips as many samples as it gave, in an order that it asks the sampler for.
        if sampler is not None and not hasattr(sampler, "set_epoch") and _draws_order(sampler):
            yield (
                f"{type_name(type(sampler))} in a SamplerWrapper gives the rest of the epoch in another order, so that "
                "samples are read a second time and others never; use ckstore.training.ElasticSampler"
            )


def _is_of(module: str, name: str, value: object) -> bool:
    """Whether a value is of a class whose module is imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _has_persistent_workers(loader: Any) -> bool:
    is_torch = _is_of("torch.utils.data", "DataLoader", loader)
    return is_torch and bool(loader.persistent_workers) and loader.num_workers > 0


def _kept_iterator(loader: Any) -> Any:
    """Return the iterator that a loader keeps, as one with persistent workers and that of torchdata do."""
    return getattr(loader, "_iterator", None)


def _draws_nothing(dataset: Any) -> bool:
    """Whether a data set is known to draw no random numbers."""
    if isinstance(dataset, list | tuple | range):
        return True
    if any(_is_of("torch.utils.data", name, dataset) for name in ("Subset", "ConcatDataset")):
        inner = getattr(dataset, "datasets", None) or [dataset.dataset]
        return all(map(_draws_nothing, inner))
    if isinstance(dataset, StatefulDataset):
        return _draws_nothing(dataset.dataset)
    return type(dataset) is getattr(sys.modules.get("torch.utils.data"), "TensorDataset", None)


def _placeless(sampler: Any) -> Any:
    """Return the sampler that the loader of torchdata does not continue with the same order; None if it does."""
    of_torchdata = f"{_TORCHDATA}.sampler"
    if is_stateful(sampler) or _is_of(of_torchdata, "RandomSampler", sampler):
        return None
    # Its own sampler of batches keeps the state of what it draws from, that of torch does not.
    if _is_of(of_torchdata, "BatchSampler", sampler):
        return _placeless(sampler.sampler)
    return sampler if _draws_order(sampler) else None


def _draws_order(sampler: Any) -> bool:
    """Whether a sampler may give another order each time that it is asked; one with a state of its own does not."""
    order = sampler.sampler if _is_of("torch.utils.data", "BatchSampler", sampler) else sampler
    # These give the same order whenever they are asked, and a stream has none.
    repeats = any(_is_of("torch.utils.data", name, order) for name in ("SequentialSampler", "DistributedSampler"))
    is_stream = _is_of("torch.utils.data.dataloader", "_InfiniteConstantSampler", order)
    return not (repeats or is_stream or is_stateful(sampler) or isinstance(order, list | tuple | range))


def is_inside_epoch(loader: Any) -> bool:
    """Whether a loader has given the first batch of an epoch, and not all; False if unknown."""
    return _batches_read(loader) > 0


def _batches_read(loader: Any) -> int:
    """Return how many batches of an epoch a loader has given; 0 between two epochs, or if unknown."""
    if _is_of(_TORCHDATA, "StatefulDataLoader", loader):
        iterator = _kept_iterator(loader)
        return 0 if iterator is None or iterator._finished else int(iterator._num_yielded)  # noqa: SLF001
    if not _is_of("torch.utils.data", "DataLoader", loader):
        return 0
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    # Each iterator of the loader refers to its sampler. Without one only the loader, this variable and the argument
    # do: so a save between two epochs does not search the whole heap.
    if sys.getrefcount(sampler) <= 3:
        return 0
    return max((members["_num_yielded"] for members in _iterators(sampler) if not _is_exhausted(members)), default=0)


def _iterators(sampler: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the members of each iterator of torch that draws from a sampler."""
    for value in gc.get_referrers(sampler):
        # Members of an object are in a dict of their own, or not: by the version of Python.
        members = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        if members.get("_index_sampler") is sampler and "_num_yielded" in members:
            yield members


def _is_exhausted(members: Mapping[str, Any]) -> bool:
    """Whether an iterator draws nothing any more, and has handed out every batch."""
    order = members["_sampler_iter"]
    if not isinstance(order, GeneratorType) or order.gi_frame is not None:
        return False
    return not members.get("_task_info")
