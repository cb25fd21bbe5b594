"""Describe a data loader, read and set its position in the data, and list the aspects that cannot be captured."""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterator, Mapping
from types import GeneratorType
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.words import counted
from ckstore.tensors.kinds import is_stateful
from ckstore.tensors.refusals import type_name
from ckstore.training.elastic_sampler import ElasticSampler
from ckstore.training.generators import set_generators
from ckstore.training.stateful_dataset import StatefulDataset

_CURE = "ckstore.training.ElasticSampler reads each once"
_INSTALL = "ckstore.integrations.accelerate.install(accelerator, store)"
_TORCHDATA = "torchdata.stateful_dataloader"
_NODES = "torchdata.nodes"
_NODES_MOST = 10_000
STATEFUL = f"{_TORCHDATA}.StatefulDataLoader"


def description(loader: Any) -> dict[str, Any]:
    """Return a description of a data loader for metadata. Loaders with other descriptions may return other batches."""
    found: dict[str, Any] = {"class": type(loader).__name__}
    for name in ("batch_size", "num_workers", "drop_last"):
        value = getattr(loader, name, None)
        if value is None:  # in loaders of accelerate, only the batch sampler has it
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
        # Record the seed if a sampler computes its order from it, because restored random states do not affect it.
        seed = getattr(sampler, "seed", None)
        if isinstance(seed, int):
            found["sampler_seed"] = seed
    return found


def length_of(dataset: Any) -> int | None:
    """Return the number of samples in a data set, or None if it has no length, like a stream."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # a stream
        return None


def check_loader(loader: Any) -> None:
    """Refuse a loader that has the methods of a state but no state.

    Raises:
        BadInput: accelerate prepared the loader without `use_stateful_dataloader`.
    """
    if _is_prepared(loader) and not loader.use_stateful_dataloader:
        raise BadInput("the data loader was prepared by accelerate, and has no state", hint=f"save with {_INSTALL}")


def _is_prepared(loader: Any) -> bool:
    kind = getattr(sys.modules.get("accelerate.data_loader"), "DataLoaderAdapter", None)
    # Check the type, because an instance reports the class of the loader that it wraps.
    return kind is not None and issubclass(type(loader), kind)


def begin(loader: Any) -> None:
    """Create the iterator of a torchdata loader that has none, as the first ``state_dict()`` of the loader does.

    This draws random numbers, so it must precede reading and setting random states.
    """
    if _is_of(_TORCHDATA, "StatefulDataLoader", loader):
        loader.state_dict()  # the next `iter` returns that iterator


def place(loader: Any, parts: Collection[Any] = ()) -> dict[str, Any]:
    """Return the values that describe the position of a loader in addition to its ``state_dict()``, if it has one.

    Args:
        loader: The loader.
        parts: The captured parts, which may include the sampler of the loader.

    Returns:
        ``epoch`` is the epoch of the sampler, or None. ``begun`` states whether the loader keeps an iterator. ``read``
        is the number of samples of the epoch that this rank has read and may read again. It is 0 between two epochs, if
        the number is unknown, and if a sampler in `parts` has the position. ``over`` states whether this sampler has
        returned the whole epoch and the loader, which has no state, has returned every batch.
    """
    epoch = getattr(getattr(loader, "sampler", None), "epoch", None)
    is_placed = _is_placed_by(parts, loader)
    batches = 0 if is_placed else _batches_read(loader)
    return {
        "epoch": epoch if isinstance(epoch, int) else None,
        "begun": _kept_iterator(loader) is not None,
        "read": batches * (getattr(loader, "batch_size", None) or 0),
        "over": is_placed and loader.sampler.is_over and not is_stateful(loader) and not is_inside_epoch(loader),
    }


def place_misfit(loader: Any, saved: Mapping[str, Any]) -> str:
    """Return why a loader cannot use the position of the loader described by `saved`, or an empty string if it can."""
    now = getattr(loader, "num_workers", None)
    if not _is_of(_TORCHDATA, "StatefulDataLoader", loader) or saved.get("num_workers") == now:
        return ""
    # The position consists of one position for each worker. With another number of workers, the loader would raise an
    # AssertionError at the next batch.
    return f"the data loader has {now} workers, but its position was saved with {saved.get('num_workers')}"


def reading(loader: Any, place: Mapping[str, Any], before_world_size: int, world_size: int) -> Iterator[str]:
    """Yield a sentence if samples of an unfinished epoch will be read twice or never on this number of ranks."""
    shares = _is_of("torch.utils.data", "DistributedSampler", getattr(loader, "sampler", None))
    if not place["read"] or (is_stateful(loader) and (before_world_size == world_size or not shares)):
        return
    count = length_of(loader.dataset) or sys.maxsize
    shares = shares or isinstance(loader.sampler, ElasticSampler)
    # If the ranks share one order, all ranks together have read the first samples of this order. Otherwise, each rank
    # has read the first samples of its own order.
    read = min(place["read"] * (before_world_size if shares else 1), count)
    begin = min(place["read"] * world_size, count)
    whose = "the epoch" if shares or before_world_size == 1 else "the epoch on each rank"
    if not is_stateful(loader):
        yield from position_change(read, 0, whose)
    else:
        yield from (f"{sentence}; {_CURE}" for sentence in position_change(read, begin, whose))


def position_change(read: int, begin: int, whose: str) -> Iterator[str]:
    """Yield a sentence if a run that has read `read` samples and continues at `begin` reads some twice or never."""
    if read > begin:
        yield f"{counted(read - begin, 'sample')} of {whose} will be read a second time"
    elif read < begin:
        yield f"{counted(begin - read, 'sample')} of {whose} will never be read"


def batches_of_prepared(loader: Any) -> int:
    """Return the number of batches of an epoch that a loader of accelerate has returned, or 0 if this is unknown."""
    if type(loader).__name__ != "DataLoaderShard":  # in a dispatcher, one process reads for all
        return 0
    # A `DataLoaderShard` has already read the batch after the one that it returned last.
    return max(_batches_read(loader.base_dataloader) - 1, 0)


def set_place(loader: Any, place: Mapping[str, Any], generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Set the position of a loader, and then the states of the generators from which the loader draws.

    Args:
        loader: The loader. If it has its own state, that state was already loaded.
        place: The result of `place` at the capture.
        generators: All private generators, by path.
        states: The states of the generators, by path.
    """
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if place["epoch"] is not None and set_epoch is not None:
        set_epoch(place["epoch"])
    # Records of older versions have no "over".
    if place.get("over") and isinstance(loader.sampler, ElasticSampler):
        loader.sampler.end_epoch()
    if not place["begun"]:
        return
    # A loader draws a seed, and maybe an order, when it creates its iterator. So create the iterator before setting the
    # states of the saved run.
    begin(loader)
    if not is_stateful(loader) and _has_persistent_workers(loader):
        iter(loader)  # the next `iter` begins an epoch with the same workers, and draws no seed
    own = (getattr(loader, "generator", None), getattr(getattr(loader, "sampler", None), "generator", None))
    paths = [path for path, generator in generators.items() if any(generator is one for one in own) and path in states]
    set_generators({path: generators[path] for path in paths}, {path: states[path] for path in paths})


def first_private(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of generators that a capture of version 1 has for a loader without its own state."""
    generator = state.get("generator")
    return {} if generator is None else {"dataloader.generator": {"kind": "torch cpu", "state": generator}}


def is_of_torchdata(loader: Any) -> bool:
    """Whether a loader is a `StatefulDataLoader`."""
    return _is_of(_TORCHDATA, "StatefulDataLoader", loader)


def losses(loader: Any, parts: Collection[Any] = ()) -> Iterator[str]:
    """Yield one sentence, with the remedy, for each aspect of a started data loader that cannot be captured.

    `parts` are the captured parts, which may include the sampler of the loader.
    """
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
        # If the loader is not from torch, its position is unknown.
        is_torch = _is_of("torch.utils.data", "DataLoader", loader)
        if not is_torch or (is_inside_epoch(loader) and not _is_placed_by(parts, loader)):
            yield (
                "the data loader does not save its position in the data, so a run that was saved inside an epoch "
                f"resumes at the beginning of an epoch; save after the loop over it, or use {STATEFUL}"
            )
        if _has_persistent_workers(loader) and place(loader)["begun"] and not _draws_nothing(loader.dataset):
            yield (
                "the worker processes of the data loader persist through all epochs, and new worker processes "
                "begin with other random numbers; use persistent_workers=False"
            )


def _losses_of_torchdata(loader: Any) -> Iterator[str]:
    if loader.num_workers > 0 and not loader.in_order:
        yield "the data loader has in_order=False, and does not know which batches it returned; use in_order=True"
    is_inside = is_inside_epoch(loader)
    placeless = _placeless(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    if is_inside and placeless is not None:
        yield (
            f"{type_name(type(placeless))} does not know which samples it returned, so the rest of the epoch has "
            "another order; use shuffle=True instead, or a sampler with state_dict"
        )
    has_new_workers = loader.num_workers > 0 and (is_inside or loader.persistent_workers)
    if has_new_workers and not is_stateful(loader.dataset) and not _draws_nothing(loader.dataset):
        yield (
            f"random numbers that {type_name(type(loader.dataset))} draws in the worker processes begin again as at "
            "the start of the epoch; give the data loader ckstore.training.StatefulDataset(dataset)"
        )


def _losses_of_nodes(loader: Any) -> Iterator[str]:
    """Yield a sentence for each sampler whose order is not in the state of a `torchdata.nodes.Loader`."""
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
        # After a resume, a SamplerWrapper draws a new order from the sampler. It skips as many samples of this order as
        # it returned before the save, but these are other samples.
        if sampler is not None and not hasattr(sampler, "set_epoch") and _draws_order(sampler):
            yield (
                f"{type_name(type(sampler))} in a SamplerWrapper returns the rest of the epoch in another order, so "
                "some samples are read twice and others never; use ckstore.training.ElasticSampler"
            )


def _is_of(module: str, name: str, value: object) -> bool:
    """Whether a value is an instance of this class. False if the module of the class is not imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _has_persistent_workers(loader: Any) -> bool:
    is_torch = _is_of("torch.utils.data", "DataLoader", loader)
    return is_torch and bool(loader.persistent_workers) and loader.num_workers > 0


def _kept_iterator(loader: Any) -> Any:
    """Return the iterator that a loader keeps if it has persistent workers or is of torchdata, otherwise None."""
    return getattr(loader, "_iterator", None)


def _is_placed_by(parts: Collection[Any], loader: Any) -> bool:
    """Whether one of `parts` is the sampler of a loader, and its position is that of the loader."""
    sampler = getattr(loader, "sampler", None)
    # Worker processes read ahead, so the sampler is then ahead of the batches that the loader has returned.
    reads_ahead = getattr(loader, "num_workers", 0) > 0
    return isinstance(sampler, ElasticSampler) and not reads_ahead and any(part is sampler for part in parts)


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
    """Return the sampler whose order a loader of torchdata does not continue, or None if it continues the order."""
    of_torchdata = f"{_TORCHDATA}.sampler"
    if is_stateful(sampler) or _is_of(of_torchdata, "RandomSampler", sampler):
        return None
    # The batch sampler of torchdata keeps the state of its sampler. The batch sampler of torch does not.
    if _is_of(of_torchdata, "BatchSampler", sampler):
        return _placeless(sampler.sampler)
    return sampler if _draws_order(sampler) else None


def _draws_order(sampler: Any) -> bool:
    """Whether a sampler may return another order each time. False for a sampler with its own state."""
    order = sampler.sampler if _is_of("torch.utils.data", "BatchSampler", sampler) else sampler
    # These samplers always return the same order, and a stream has no order.
    repeats = any(_is_of("torch.utils.data", name, order) for name in ("SequentialSampler", "DistributedSampler"))
    is_stream = _is_of("torch.utils.data.dataloader", "_InfiniteConstantSampler", order)
    return not (repeats or is_stream or is_stateful(sampler) or isinstance(order, list | tuple | range))


def is_inside_epoch(loader: Any) -> bool:
    """Whether a loader has returned some but not all batches of an epoch. False if this is unknown."""
    return _batches_read(loader) > 0


def _batches_read(loader: Any) -> int:
    """Return the number of batches of an epoch that a loader has returned, or 0 between two epochs or if unknown."""
    if _is_of(_TORCHDATA, "StatefulDataLoader", loader):
        iterator = _kept_iterator(loader)
        return 0 if iterator is None or iterator._finished else int(iterator._num_yielded)  # noqa: SLF001
    if not _is_of("torch.utils.data", "DataLoader", loader):
        return 0
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    # Each iterator of the loader refers to its sampler. Without an iterator, only the loader, this variable and the
    # argument of `getrefcount` refer to the sampler, so a save between two epochs does not search the whole heap.
    if sys.getrefcount(sampler) <= 3:
        return 0
    return max((members["_num_yielded"] for members in _iterators(sampler) if not _is_exhausted(members)), default=0)


def _iterators(sampler: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the members of each iterator of torch that draws from a sampler."""
    for value in gc.get_referrers(sampler):
        # Depending on the version of Python, the referrer is an object or the dict of an object.
        members = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        if members.get("_index_sampler") is sampler and "_num_yielded" in members:
            yield members


def _is_exhausted(members: Mapping[str, Any]) -> bool:
    """Whether an iterator draws no more samples and has returned every batch."""
    order = members["_sampler_iter"]
    if not isinstance(order, GeneratorType) or order.gi_frame is not None:
        return False
    return not members.get("_task_info")
