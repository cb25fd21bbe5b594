"""What a report calls exact is exact, for the loader of torchdata that keeps its place."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from ckstore import DoesNotFit, Store
from ckstore.training import ElasticSampler, StatefulDataset, capture, restore
from tests.support.stores import check_store
from tests.training.exact_cases import POSITIONS, Case, stateful

if importlib.util.find_spec("torchdata") is None:
    pytest.skip("needs torchdata: make states", allow_module_level=True)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # those of torch about forks


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("has_generator", [True, False], ids=["generator", "no generator"])
@pytest.mark.parametrize("workers", [0, 2, "persistent"])
@pytest.mark.parametrize("data", ["none", "global", "global, kept", "its own", "its own, kept"])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_stateful_loader_goes_on_exactly_or_the_report_names_it(
    has_generator: bool, workers: int | str, data: str, position: str, tmp_path: Path
) -> None:
    store = Store.init(tmp_path / "store")
    draws, _, kept = data.partition(", ")
    case = Case(stateful, has_generator, workers, draws, position, wrapped=bool(kept))

    is_same, report = case.resume(store)

    # The workers of a data set that keeps no state begin with new random numbers.
    has_new_workers = workers == "persistent" or (workers == 2 and position != "after an epoch")
    can_be_exact = draws == "none" or bool(kept) or not has_new_workers
    assert (report.inexact == ()) == can_be_exact, report
    assert is_same or report.inexact
    if can_be_exact:
        assert is_same
    check_store(store.path)


NUMBERS: Any = range(16)
SAMPLERS: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "DistributedSampler": lambda _: {"sampler": DistributedSampler(NUMBERS, 2, 1, seed=3), "batch_size": 2},
    "RandomSampler": lambda own: {"sampler": RandomSampler(range(16), generator=own), "batch_size": 2},
    "WeightedRandomSampler": lambda own: {"sampler": WeightedRandomSampler([1.0] * 16, 16, generator=own)},
    "BatchSampler": lambda own: {"batch_sampler": BatchSampler(RandomSampler(range(16), generator=own), 2, False)},
}


def epochs(loader: Any, first: int, count: int, save: Callable[[int, int], None] = lambda *_: None) -> list[Any]:
    """Return the batches of epochs as most programs read them."""
    found = []
    for epoch in range(first, first + count):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for at, batch in enumerate(loader):
            found.append(batch.tolist())
            save(epoch, at)
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_of_torch_in_a_stateful_loader_goes_on_exactly_or_the_report_names_it(
    name: str, workers: int, tmp_path: Path
) -> None:
    store = Store.init(tmp_path / "store")

    def loader(seed: int) -> Any:
        return stateful(range(16), num_workers=workers, **SAMPLERS[name](torch.Generator().manual_seed(seed)))

    mine = loader(1)

    def save(epoch: int, at: int) -> None:
        if (epoch, at) == (1, 1):
            store.save(capture(dataloader=mine))

    batches = epochs(mine, 0, 4, save)
    of_epoch = len(mine)
    again = loader(2)
    report = restore(store, dataloader=again)
    resumed = epochs(again, 1, 3)

    is_same = resumed == batches[of_epoch + 2 :]
    assert is_same == (name == "DistributedSampler")
    assert is_same == (report.inexact == ())
    assert is_same or f"{name} does not know which samples it returned" in report.inexact[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_is_captured_before_its_first_batch_goes_on_exactly(workers: int, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")

    def loader() -> Any:
        return stateful(range(16), batch_size=4, shuffle=True, num_workers=workers)

    mine = loader()
    torch.manual_seed(5)
    store.save(capture(dataloader=mine))
    expected = [epochs(mine, 0, 2), torch.rand(2).tolist()]

    again = loader()
    report = restore(store, dataloader=again)

    assert [epochs(again, 0, 2), torch.rand(2).tolist()] == expected
    assert report.inexact == ()


def test_a_loader_without_order_and_one_of_another_class_are_named(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    mine = stateful(range(16), num_workers=2, in_order=False)
    next(iter(mine))
    store.save(capture(dataloader=mine))
    other: Any = torch.utils.data.DataLoader(NUMBERS, num_workers=2)

    report = restore(store, dataloader=other)

    assert len(epochs(other, 0, 1)) == 16
    assert report.inexact == (
        "the data loader has another class: 'DataLoader' now, 'StatefulDataLoader' in the checkpoint",
        "the data loader has in_order=False, and does not know which batches it returned; use in_order=True",
    )


def test_a_place_of_another_number_of_workers_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    mine = stateful(range(16), num_workers=2)
    next(iter(mine))
    model = torch.nn.Linear(1, 1)
    store.save(capture(model, dataloader=mine))
    other = torch.nn.Linear(1, 1)
    weight = other.weight.item()
    without = stateful(range(16))

    with pytest.raises(
        DoesNotFit, match="the data loader has 0 workers, but its position was saved with 2; nothing was"
    ):
        restore(store, model=other, dataloader=without)
    assert other.weight.item() == weight
    report = restore(store, model=other, dataloader=without, strict=False)

    assert torch.equal(other.weight, model.weight)
    assert len(epochs(without, 0, 1)) == 16
    assert report.inexact == ("the data loader has another num workers: 0 now, 2 in the checkpoint",)


class Counted:
    """A data set that counts what was read."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return self.count

    def state_dict(self) -> dict[str, int]:
        """Return the count."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the count."""
        self.count = state["count"]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_data_set_in_a_stateful_data_set_is_kept(workers: int, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")

    def loader() -> Any:
        return stateful(StatefulDataset(Counted()), num_workers=workers)

    mine = loader()
    batches = iter(mine)
    next(batches), next(batches), next(batches)
    store.save(capture(dataloader=mine))
    expected = [batch.item() for batch in batches]

    again = loader()
    report = restore(store, dataloader=again)

    assert [batch.item() for batch in again] == expected
    assert report.inexact == ()


def test_a_stateful_loader_that_accelerate_prepared_is_named(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    store = Store.init(tmp_path / "store")
    configuration = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)
    loader = accelerate.Accelerator(cpu=True, dataloader_config=configuration).prepare(stateful(range(16)))
    store.save(capture(dataloader=loader))

    report = restore(store, dataloader=loader)

    (sentence,) = report.inexact
    assert sentence.startswith(
        "the data loader was prepared by accelerate, which reads a batch ahead and counts epochs"
    )


def node_loader(sampler: Any) -> Any:
    """Return a loader of torchdata's nodes, with a sampler below other nodes."""
    nodes = importlib.import_module("torchdata.nodes")
    return nodes.Loader(nodes.Batcher(nodes.Prefetcher(nodes.SamplerWrapper(sampler), 2), 3, drop_last=False))


NODE_SAMPLERS: dict[str, Callable[[], Any]] = {
    "RandomSampler": lambda: RandomSampler(range(16), generator=torch.Generator().manual_seed(3)),
    "RandomSampler of the process": lambda: RandomSampler(range(16)),
    "DistributedSampler": lambda: DistributedSampler(NUMBERS, 1, 0, seed=3),
    "ElasticSampler": lambda: ElasticSampler(range(16), seed=3),
    "a range": lambda: range(16),
}


@pytest.mark.parametrize("name", NODE_SAMPLERS)
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_loader_of_nodes_goes_on_exactly_or_the_report_names_its_sampler(
    name: str, epochs: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    loader = node_loader(NODE_SAMPLERS[name]())
    for _ in range(epochs):
        list(loader)
    rest = iter(loader)
    given = [next(rest), next(rest)]
    model = torch.nn.Linear(1, 1)
    with Store.init(tmp_path / "store") as store:
        store.save(capture(model, dataloader=loader), step=1)
        wanted = [*rest], [*loader]
        torch.manual_seed(7)
        again = node_loader(NODE_SAMPLERS[name]())
        report = restore(store, model=model, dataloader=again)

    assert any("SamplerWrapper" in line for line in report.inexact) == name.startswith("RandomSampler"), report
    found = [*again], [*again]
    assert report.inexact or found == wanted
    assert len(given) == 2
    check_store(tmp_path / "store")
