"""A data set whose state is the random states of the process that reads it, for loaders that save such a state."""

from __future__ import annotations

import os
from typing import Any

from ckstore.tensors.kinds import is_stateful
from ckstore.training.generators import find_generators, set_generators, states_of
from ckstore.training.rng import random_states, set_random_states


class StatefulDataset:
    """A data set with a state: the random states of the process that reads it, and those of its own generators.

    `StatefulDataLoader` of torchdata saves the state of the data set in each worker process, and loads it after a
    resume. Augmentation with ``random``, NumPy or torch then continues exactly inside an epoch. Each batch carries this
    state, which takes about 10 kB.

    Args:
        dataset: A data set with ``__len__`` and ``__getitem__``. If it has its own state, that state is also saved.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        # Search once in each process, because a loader with workers reads the state after every batch.
        self._generators: tuple[int, dict[str, Any]] = (0, {})

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        # During unpickling in a worker, the object has no data set yet.
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the random states of this process and of the generators in the data set, and the data set's state."""
        own = {"dataset": self.dataset.state_dict()} if is_stateful(self.dataset) else {}
        return {"random": random_states(), "generators": states_of(self._found()), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the random states of this process and of the generators, and load the state of the data set."""
        if is_stateful(self.dataset) and "dataset" in state:
            self.dataset.load_state_dict(state["dataset"])
        set_generators(self._found(), state["generators"])
        set_random_states(state["random"])

    def _found(self) -> dict[str, Any]:
        if self._generators[0] != os.getpid():
            self._generators = (os.getpid(), find_generators({"dataset": self.dataset})[0])
        return self._generators[1]
