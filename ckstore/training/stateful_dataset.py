"""A data set whose state is the random states of the process that reads it, for loaders that ask data sets for one."""

from __future__ import annotations

import os
from typing import Any

from ckstore.tensors.kinds import is_stateful
from ckstore.training.generators import find_generators, set_generators, states_of
from ckstore.training.rng import random_states, set_random_states


class StatefulDataset:
    """A data set with a state: the random states of the process that reads it, and those of its own generators.

    `StatefulDataLoader` of torchdata asks a data set for its state in each worker process, and gives it back after a
    resume: augmentation by ``random``, NumPy or torch then goes on exactly inside an epoch. Each batch carries this
    state, about 10 kB.

    Args:
        dataset: A data set with ``__len__`` and ``__getitem__``. If it has a state of its own, that is kept as well.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        # Searched for once in each process: a loader with workers asks for the state after every batch.
        self._generators: tuple[int, dict[str, Any]] = (0, {})

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        # While it is unpickled in a worker it has no data set yet.
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the random states of this process, those of the generators in the data set, and its own state."""
        own = {"dataset": self.dataset.state_dict()} if is_stateful(self.dataset) else {}
        return {"random": random_states(), "generators": states_of(self._found()), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them in this process."""
        if is_stateful(self.dataset) and "dataset" in state:
            self.dataset.load_state_dict(state["dataset"])
        set_generators(self._found(), state["generators"])
        set_random_states(state["random"])

    def _found(self) -> dict[str, Any]:
        if self._generators[0] != os.getpid():
            self._generators = (os.getpid(), find_generators({"dataset": self.dataset})[0])
        return self._generators[1]
