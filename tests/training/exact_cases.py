"""Runs of the law of exact resumes: loaders, generators, workers, random numbers of the data set, and positions."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ckstore import Store
from ckstore.training import ResumeReport, StatefulDataset, capture, restore

_BATCHES = 4
"""Batches of an epoch."""
END = 3 * _BATCHES + 2
"""The last step: it crosses two ends of epochs after every position."""
POSITIONS = {"inside an epoch": 6, "at the last batch": 8, "after an epoch": 8}
"""Where a checkpoint is saved -> at which step."""


class Augmented(Dataset[Any]):
    """A data set that draws from the global generators, or from one of its own."""

    def __init__(self, draws: str) -> None:
        self.rows = torch.randn(4 * _BATCHES, 8, generator=torch.Generator().manual_seed(1))
        self.rng = np.random.default_rng(5) if draws == "its own" else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if self.rng is not None:
            return self.rows[index] + self.rng.random()
        noise = random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002 - what many data sets do
        return self.rows[index] + noise


@dataclass(frozen=True)
class Case:
    """How a run loads its data, and where it is saved."""

    make: Callable[..., Any]
    has_generator: bool
    workers: int | str  # "persistent": two that go on through all epochs
    draws: str  # "none", "global", "its own"
    position: str
    wrapped: bool = False  # whether the data set is a `StatefulDataset`

    def parts(self) -> dict[str, Any]:
        """Return the parts of a new run."""
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - as above
        data: Any = Augmented(self.draws)
        if self.draws == "none":
            data = TensorDataset(data.rows)
        if self.wrapped:
            data = StatefulDataset(data)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(2)} if self.has_generator else {}
        loader = self.make(
            data,
            batch_size=4,
            shuffle=True,
            num_workers=2 if self.workers == "persistent" else self.workers,
            persistent_workers=self.workers == "persistent",
            **options,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return {"model": model, "optimizer": optimizer, "dataloader": loader}

    def train(self, parts: dict[str, Any], step: int, store: Store | None = None) -> list[float]:
        """Train up to the last step; return for each step the loss and what the batch begins with."""
        found: list[float] = []
        save_at = POSITIONS[self.position]

        def save(is_loop_over: bool) -> None:
            if store is not None and step == save_at and is_loop_over == (self.position == "after an epoch"):
                store.save(capture(**parts, extra={"step": step}), step=step)

        while step < END:
            for batch in parts["dataloader"]:
                rows = batch[0] if isinstance(batch, list | tuple) else batch
                parts["optimizer"].zero_grad()
                loss = parts["model"](rows).square().mean()
                loss.backward()
                parts["optimizer"].step()
                step += 1
                found += [loss.item(), rows[0, 0].item()]
                save(False)
                if step >= END:
                    return found
            save(True)
        return found

    def resume(self, store: Store) -> tuple[bool, ResumeReport]:
        """Run once whole and once with a stop; return whether both are the same, and the report of the resume."""
        whole = self.train(self.parts(), 0, store)
        parts = self.parts()
        for draw in (torch.rand, np.random.rand):  # the new process has drawn other numbers
            draw(7)
        random.random()
        report = restore(store, "latest-valid", **parts)
        again = self.train(parts, report.extra["step"])
        return whole[-len(again) :] == again, report


def plain(*arguments: Any, **options: Any) -> Any:
    """Return a loader of torch."""
    return DataLoader(*arguments, **options)


def stateful(*arguments: Any, **options: Any) -> Any:
    """Return a loader of torchdata."""
    return importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader(*arguments, **options)
