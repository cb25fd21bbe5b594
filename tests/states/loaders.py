"""Rows: data loaders and samplers of torch, and loaders that say their place; random states with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tests.states.table import Parts, Run


class Counting:
    """A loader of batches that says its place, with a random order for each epoch."""

    def __init__(self, count: int = 7) -> None:
        self.count = count
        self.epoch = 0
        self.place = 0
        self.generator = torch.Generator().manual_seed(int(torch.randint(999, ())))
        self._begin()

    def _begin(self) -> None:
        self.before = self.generator.get_state()
        self.order = torch.randperm(self.count, generator=self.generator).tolist()

    def __next__(self) -> int:
        if self.place == self.count:
            self.epoch, self.place = self.epoch + 1, 0
            self._begin()
        self.place += 1
        found: int = self.order[self.place - 1]
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the place."""
        return {"epoch": self.epoch, "place": self.place, "generator": self.before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a place."""
        self.generator.set_state(state["generator"])
        self._begin()
        self.epoch, self.place = state["epoch"], state["place"]


class Stream(IterableDataset[int]):
    """A stream that says how far it is."""

    def __init__(self) -> None:
        self.start = int(torch.randint(5, ()))
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            yield self.start + self.at

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return vars(self).copy()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a place."""
        vars(self).update(state)


class Refuses:
    """A loader whose place can be told only before it is begun: to ask it changes it."""

    def __init__(self) -> None:
        self.at = int(torch.randint(100, ()))
        self.asked = False

    def __next__(self) -> int:
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, int]:
        """Return the place, and forget that another one may be given."""
        self.asked = True
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a place, unless the own one was told."""
        if not self.asked:
            self.at = state["at"]


class Generators:
    """Random generators of Python, NumPy and torch, as a state."""

    def __init__(self) -> None:
        seed = int(torch.randint(999, ()))
        self.python, self.numpy = random.Random(seed), np.random.default_rng(seed)
        self.torch = torch.Generator().manual_seed(seed)

    def draw(self) -> list[object]:
        """Draw from each."""
        return [self.python.random(), float(self.numpy.random()), torch.rand(2, generator=self.torch)]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all."""
        return {
            "python": self.python.getstate(),
            "numpy": self.numpy.bit_generator.state,
            "torch": self.torch.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the states of all."""
        self.python.setstate(state["python"])
        self.numpy.bit_generator.state = state["numpy"]
        self.torch.set_state(state["torch"])


class Epochs:
    """A loader of torch, which keeps an epoch and the state of its generator: it goes on at the next epoch."""

    def __init__(self, make: Callable[[Dataset[Any], torch.Generator], DataLoader[Any]]) -> None:
        self.generator = torch.Generator().manual_seed(int(torch.randint(999, ())))
        self.loader = make(TensorDataset(torch.arange(7)), self.generator)
        self.epoch = 0

    def batches(self) -> list[Any]:
        """Return the batches of the next epoch."""
        sampler: Any = self.loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        self.epoch += 1
        return list(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the state of the generator."""
        return {"epoch": self.epoch, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set both."""
        self.epoch = state["epoch"]
        self.generator.set_state(state["generator"])


_EPOCHS: dict[str, Callable[[Any, torch.Generator], DataLoader[Any]]] = {
    "shuffled": lambda data, own: DataLoader(data, 2, shuffle=True, generator=own),
    "without the last": lambda data, own: DataLoader(data, 2, shuffle=True, drop_last=True, generator=own),
    "in order": lambda data, own: DataLoader(data, sampler=SequentialSampler(data), generator=own),
    "RandomSampler with replacement": lambda data, own: DataLoader(
        data, sampler=RandomSampler(data, replacement=True, num_samples=5, generator=own)
    ),
    "SubsetRandomSampler": lambda data, own: DataLoader(data, sampler=SubsetRandomSampler([0, 2, 4], generator=own)),
    "WeightedRandomSampler": lambda data, own: DataLoader(
        data, sampler=WeightedRandomSampler([1.0, 2.0, 3.0], 4, generator=own)
    ),
    "BatchSampler": lambda data, own: DataLoader(
        data, batch_sampler=BatchSampler(RandomSampler(data, generator=own), 3, drop_last=False)
    ),
    "DistributedSampler": lambda data, own: DataLoader(
        data, 2, sampler=DistributedSampler(data, num_replicas=2, rank=1), generator=own
    ),
}


def _epochs(make: Callable[[Any, torch.Generator], DataLoader[Any]]) -> Parts:
    return {"loader": Epochs(make)}


def _next(name: str, make: Callable[[], Any]) -> Run:
    return Run(name, lambda: {"loader": make()}, lambda parts: next(parts["loader"]))


def _random_of_torch(parts: Parts) -> object:
    torch.default_generator.set_state(parts["rng"]["torch"])
    drawn = torch.rand(3)
    parts["rng"] = {"torch": torch.default_generator.get_state()}
    return drawn


def rows() -> Iterator[Run]:
    """Yield the rows."""
    yield _next("a loader that says its place", Counting)
    yield _next("a loader of one batch", lambda: Counting(1))
    yield _next("a loader that may not be asked before it is loaded", Refuses)
    yield Run("a stream", lambda: {"data": Stream()}, lambda parts: next(iter(parts["data"])))
    yield Run("random generators", lambda: {"rng": Generators()}, lambda parts: parts["rng"].draw())
    yield Run("the state of torch", lambda: {"rng": {"torch": torch.get_rng_state()}}, _random_of_torch)
    for name, make in _EPOCHS.items():
        yield Run(f"DataLoader, {name}", partial(_epochs, make), lambda parts: parts["loader"].batches())
