"""A loader that draws when its iterator is made, as that of torchdata does, changes nothing that is restored.

`tests/states` has the loader of torchdata itself; this is its order of draws, for an environment without it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ckstore import DoesNotFit, Store
from ckstore.training import capture, restore
from tests.support.stores import check_store


class _Batches:
    """An iterator: it draws an order and a seed when it is made."""

    def __init__(self, loader: StatefulDataLoader, state: dict[str, Any] | None) -> None:
        torch.randint(99, ())
        self.before = loader.generator.get_state()
        self._num_yielded, self._finished = 0, False
        if state is not None:
            self.before, self._num_yielded, self._finished = state["before"], state["yielded"], state["finished"]
            loader.generator.set_state(self.before)
        self.order = torch.randperm(6, generator=loader.generator).tolist()
        if state is None:
            # After a resume that of torchdata draws it before the order: the generator is one draw behind.
            torch.randint(99, (), generator=loader.generator)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._num_yielded == len(self.order):
            self._finished = True
            raise StopIteration
        self._num_yielded += 1
        found: int = self.order[self._num_yielded - 1]
        return found


class StatefulDataLoader:
    """A loader that makes its iterator when it is asked for its state or for a batch."""

    num_workers, in_order, batch_sampler = 0, True, None
    sampler = torch.utils.data.SequentialSampler(range(6))  # which knows its place

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self._iterator: _Batches | None = None
        self._is_new = False
        self._state: dict[str, Any] | None = None

    def _begin(self) -> _Batches:
        state, self._state = self._state, None
        self._iterator = _Batches(self, state)
        return self._iterator

    def __iter__(self) -> _Batches:
        is_new, self._is_new = self._is_new, False
        found = self._iterator if is_new and self._iterator is not None else self._begin()
        return self._begin() if found._finished else found

    def state_dict(self) -> dict[str, Any]:
        """Return the place."""
        if self._iterator is None:
            self._begin()
            self._is_new = True
        assert self._iterator is not None
        at = self._iterator
        return {"before": at.before, "yielded": at._num_yielded, "finished": at._finished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place when it is asked for the next batch."""
        self._iterator, self._state = None, state


@pytest.fixture(autouse=True)
def _as_torchdata(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torchdata.stateful_dataloader")
    module.StatefulDataLoader = StatefulDataLoader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def epochs(loader: StatefulDataLoader, count: int) -> list[object]:
    """Return what some epochs give, and what is drawn beside them."""
    return [[*loader, torch.rand(2).tolist()] for _ in range(count)]


@pytest.mark.parametrize("batches", range(8))
def test_a_loader_that_draws_when_it_begins_goes_on_exactly(batches: int, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    torch.manual_seed(0)
    mine = StatefulDataLoader(1)
    for at, _ in enumerate(mine, 1) if batches else ():
        if at == batches:
            break
    store.save(capture(dataloader=mine))
    is_inside = 0 < batches <= 6
    # A loop over the rest: `iter` of this loader would begin the epoch again.
    rest = [*mine._iterator] if is_inside and mine._iterator is not None else []
    expected = [rest, torch.rand(2).tolist(), epochs(mine, 2)]

    torch.manual_seed(1)
    again = StatefulDataLoader(2)
    report = restore(store, dataloader=again)
    resumed = [[*again] if is_inside else [], torch.rand(2).tolist(), epochs(again, 2)]

    assert resumed == expected
    assert report.inexact == ()
    check_store(store.path)


def test_a_loader_of_other_workers_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    mine, model = StatefulDataLoader(1), torch.nn.Linear(1, 1)
    store.save(capture(model, dataloader=mine))
    other, again = torch.nn.Linear(1, 1), StatefulDataLoader(2)
    weight = other.weight.item()
    again.num_workers = 2

    with pytest.raises(DoesNotFit, match="the data loader has 2 workers, but its position was saved with 0"):
        restore(store, model=other, dataloader=again)
    assert other.weight.item() == weight
    report = restore(store, model=other, dataloader=again, strict=False)

    assert torch.equal(other.weight, model.weight)
    assert again._iterator is None
    assert report.inexact == ("the data loader has another num workers: 2 now, 0 in the checkpoint",)
