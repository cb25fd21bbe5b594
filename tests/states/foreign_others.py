"""Rows: loaders of torchdata, metrics of torchmetrics, values of tensordict, omegaconf, pydantic, transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset

from tests.states.table import Parts, Refused, Row, Run, Value


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


class Numbers(IterableDataset[int]):
    """A stream of numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


class Goes:
    """A loader and its iterator, which begins again at its end."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.batches: Any = None

    def __next__(self) -> Any:
        if self.batches is None:
            self.batches = iter(self.loader)
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)


def _loads(name: str, make: Callable[[], Any]) -> Run:
    """Return the row of a loader; what it is asked for next is beside it, for an iterator has no state."""

    def parts() -> Parts:
        torch.rand(3)
        return {"loader": make()}

    def step(parts: Parts) -> object:
        loader = parts["loader"]
        going = _GOING.get(id(loader))
        if going is None or going.loader is not loader:
            going = _GOING[id(loader)] = Goes(loader)
        return next(going)

    return Run(f"torchdata: {name}", parts, step)


_GOING: dict[int, Goes] = {}


def _stateful(data: Any, **options: Any) -> Callable[[], Any]:
    return lambda: _of("torchdata.stateful_dataloader", "StatefulDataLoader")(data, **options)


def _stateful_loaders() -> Iterator[Run]:
    data = list(range(20))
    options: list[dict[str, Any]] = [
        *({}, {"batch_size": 2}, {"batch_size": 3, "drop_last": True}, {"batch_size": 2, "shuffle": True}),
        *({"batch_size": 2, "num_workers": 1}, {"batch_size": 2, "shuffle": True, "num_workers": 2}),
        {"batch_size": 2, "num_workers": 1, "snapshot_every_n_steps": 2},
    ]
    for own in options:
        words = ", ".join(f"{key}={value}" for key, value in own.items())
        yield _loads(f"StatefulDataLoader({words})", _stateful(data, **own))
    yield _loads("StatefulDataLoader of a stream", _stateful(Numbers(), batch_size=2))
    yield _loads("StatefulDataLoader with a sampler", _sampled)


def _sampled() -> Any:
    data = list(range(20))
    sampler = _of("torchdata.stateful_dataloader.sampler", "StatefulDistributedSampler")(
        data, num_replicas=2, rank=0, shuffle=True
    )
    return _stateful(data, batch_size=2, sampler=sampler)()


def _loader_of(make: Callable[[], Any]) -> Any:
    return _of("torchdata.nodes", "Loader")(make())


def _nodes() -> Iterator[Run]:
    def node(name: str, *given: Any, **options: Any) -> Any:
        return _of("torchdata.nodes", name)(*given, **options)

    def source() -> Any:
        return node("IterableWrapper", range(20))

    def sampled() -> Any:
        sampler = torch.utils.data.SequentialSampler(range(20))
        return node("MapStyleWrapper", map_dataset=list(range(20)), sampler=sampler)

    makes: dict[str, Callable[[], Any]] = {
        "IterableWrapper": source,
        "SamplerWrapper": lambda: node("SamplerWrapper", torch.utils.data.SequentialSampler(range(20))),
        "MapStyleWrapper": sampled,
        "Batcher": lambda: node("Batcher", source(), 2),
        "Batcher without the last": lambda: node("Batcher", source(), 3, drop_last=True),
        "Unbatcher": lambda: node("Unbatcher", node("Batcher", source(), 2)),
        "Mapper": lambda: node("Mapper", source(), str),
        "ParallelMapper": lambda: node("ParallelMapper", source(), str, num_workers=2, method="thread"),
        "Prefetcher": lambda: node("Prefetcher", source(), 2),
        "MultiNodeWeightedSampler": lambda: node(
            "MultiNodeWeightedSampler", {"a": source(), "b": source()}, {"a": 0.5, "b": 0.5}, seed=3
        ),
    }
    for name, make in makes.items():
        yield _loads(f"nodes.{name}", partial(_loader_of, make))


def _metric(name: str, make: Callable[[], Any], *given: Callable[[], torch.Tensor]) -> Run:
    def parts() -> Parts:
        made = make()
        made.persistent(mode=True)
        return {"metric": made}

    def step(parts: Parts) -> object:
        parts["metric"].update(*(one() for one in given))
        return parts["metric"].compute()

    return Run(f"torchmetrics: {name}", parts, step)


def _metrics() -> Iterator[Run]:
    labels = lambda: torch.randint(3, (5,))  # noqa: E731
    numbers = lambda: torch.rand(5)  # noqa: E731
    yield _metric("MeanMetric", _of("torchmetrics", "MeanMetric"), numbers)
    yield _metric("SumMetric", _of("torchmetrics", "SumMetric"), numbers)
    yield _metric("CatMetric, a list that grows", _of("torchmetrics", "CatMetric"), numbers)
    accuracy = lambda: _of("torchmetrics.classification", "MulticlassAccuracy")(3)  # noqa: E731
    yield _metric("MulticlassAccuracy", accuracy, labels, labels)
    yield _metric("PearsonCorrCoef", _of("torchmetrics", "PearsonCorrCoef"), numbers, numbers)
    yield _metric(
        "MetricCollection",
        lambda: _of("torchmetrics", "MetricCollection")([_of("torchmetrics", "MeanSquaredError")()]),
        numbers,
        numbers,
    )


def _tensordict() -> Any:
    return _of("tensordict", "TensorDict")({"a": torch.ones(3, 2), "b": {"c": torch.arange(3)}}, batch_size=[3])


def _configuration() -> Any:
    return _of("omegaconf", "OmegaConf").create({"lr": 0.1, "model": {"layers": [1, 2], "width": "${lr}"}})


def _pydantic() -> Any:
    return importlib.import_module("pydantic").create_model("Settings", lr=(float, 0.1), names=(list[str], ["a"]))()


def _values() -> Iterator[Row]:
    yield Value("tensordict: TensorDict", _tensordict)
    yield Refused(
        "omegaconf: a DictConfig",
        _configuration,
        "omegaconf.OmegaConf.to_container(value)",
        lambda back: _of("omegaconf", "OmegaConf").create(back),
        using={"omegaconf": importlib.import_module("omegaconf")},
    )
    yield Refused(
        "omegaconf: a ListConfig",
        lambda: _configuration().model.layers,
        "omegaconf.OmegaConf.to_container(value)",
        lambda back: _of("omegaconf", "OmegaConf").create(back),
        using={"omegaconf": importlib.import_module("omegaconf")},
    )
    yield Refused("pydantic: a model", _pydantic, "value.model_dump()")
    yield Value(
        "transformers: a BatchEncoding",
        lambda: _of("transformers", "BatchEncoding")({"input_ids": torch.ones(1, 3)}),
        lambda value: value,  # of which pickle forgets an attribute
        allow=True,
    )
    yield Value("transformers: a configuration", lambda: _of("transformers", "GPT2Config")(n_layer=1), allow=True)


def rows() -> Iterator[Row]:
    """Yield the rows."""
    yield from _stateful_loaders()
    yield from _nodes()
    yield from _metrics()
    yield from _values()
