"""A run that goes on on another number of ranks reads each sample once, or its report counts what it does not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import Store
from ckstore.integrations.accelerate import install
from ckstore.training import ElasticSampler
from tests.support.stores import check_store

if importlib.util.find_spec("torchdata") is None:
    pytest.skip("needs torchdata: make states", allow_module_level=True)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning"),
]
ROOT = Path(__file__).parents[2]

_RANK = textwrap.dedent("""
    import json, sys
    import torch, torch.distributed as dist
    from torch.utils.data import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader
    from ckstore import Store
    from ckstore.training import ElasticSampler, capture, restore

    folder, kind, tag, rank, world, batches = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:])
    dist.init_process_group("gloo", init_method=f"file://{folder}/{tag}", rank=rank, world_size=world)
    data = range(48)
    torch.manual_seed(rank)
    options = {
        "elastic": lambda: {"sampler": ElasticSampler(data, seed=3)},
        "elastic, workers": lambda: {"sampler": ElasticSampler(data, seed=3), "num_workers": 2},
        "DistributedSampler": lambda: {"sampler": DistributedSampler(data, seed=3)},
        "plain, elastic": lambda: {"sampler": ElasticSampler(data, seed=3)},
        "plain": lambda: {"sampler": DistributedSampler(data, seed=3)},
        "own": lambda: {"shuffle": True},
    }[kind]()
    cls = torch.utils.data.DataLoader if kind.startswith("plain") else StatefulDataLoader
    loader = cls(data, batch_size=4, **options)
    store = Store.open_or_init(f"{folder}/store")
    dist.barrier()
    inexact = restore(store, dataloader=loader).inexact if store.latest() is not None else ()
    found = []
    for at, batch in enumerate(loader, 1):
        found += batch.tolist()
        if at == batches:
            state = capture(dataloader=loader)
            if rank == 0:
                store.save(state)
            dist.barrier()
            if kind != "own":
                break
    print(json.dumps([found, inexact]))
    dist.barrier()
""")


def ranks(folder: Path, kind: str, tag: str, world: int, batches: int) -> list[Any]:
    """Return what each rank read, and what its report says."""
    words = [sys.executable, "-W", "ignore", "-c", _RANK, str(folder), kind, tag]
    running = [
        subprocess.Popen([*words, str(rank), str(world), str(batches)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=180)[0] for process in running]
    assert [process.returncode for process in running] == [0] * world
    return [json.loads(output.splitlines()[-1]) for output in outputs]


SAID = {
    "elastic": (None, None),
    "elastic, workers": (None, None),
    "DistributedSampler": (
        "8 samples of the epoch will be read a second time; ckstore.training.ElasticSampler reads each once",
        "24 samples of the epoch will never be read; ckstore.training.ElasticSampler reads each once",
    ),
    "plain, elastic": (
        "16 samples of the epoch will be read a second time",
        "16 samples of the epoch will be read a second time",
    ),
    "plain": (
        "16 samples of the epoch will be read a second time",
        "16 samples of the epoch will be read a second time",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_each_sample_is_read_once_on_two_ranks_one_and_two_or_the_report_counts_it(kind: str, tmp_path: Path) -> None:
    phases = [ranks(tmp_path, kind, "a", 2, 2), ranks(tmp_path, kind, "b", 1, 4), ranks(tmp_path, kind, "c", 2, 99)]

    said = [[sentence for sentence in phase[0][1] if "sample" in sentence] for phase in phases[1:]]
    assert said == [[] if sentence is None else [sentence] for sentence in SAID[kind]]
    seen = Counter(sample for phase in phases for found, _ in phase for sample in found)
    if kind.startswith("elastic"):
        assert seen == Counter(range(48))
    if kind == "DistributedSampler":
        assert (sum(count - 1 for count in seen.values()), 48 - len(seen)) == (8, 24)
    check_store(tmp_path / "store")


@pytest.mark.parametrize("workers, tries", [(0, 40), (2, 4)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_with_workers_reads_each_sample_once_in_each_epoch_on_any_numbers_of_ranks(
    workers: int, tries: int, drop_last: bool
) -> None:
    stateful_dataloader: Any = importlib.import_module("torchdata.stateful_dataloader")
    draw = random.Random(workers)
    for _ in range(tries):
        count, batch_size = draw.randint(1, 40), draw.randint(1, 5)
        stops = [(draw.randint(1, 4), draw.randint(0, 6)) for _ in range(draw.randint(1, 4))]
        epochs: list[Counter[int]] = [Counter() for _ in range(2)]
        state: Any = None
        first_epoch = 0
        for world, most_batches in [*stops, (draw.randint(1, 4), 10**6)]:
            batches = most_batches
            samplers = [ElasticSampler(count, world_size=world, rank=at, remainder="share") for at in range(world)]
            loaders = [
                stateful_dataloader.StatefulDataLoader(
                    range(count), batch_size, sampler=sampler, num_workers=workers, drop_last=drop_last
                )
                for sampler in samplers
            ]
            for loader in loaders if state is not None else ():
                loader.load_state_dict(state)
            for epoch in range(first_epoch, 2):
                for sampler in samplers:
                    sampler.set_epoch(epoch)
                iterators = [iter(loader) for loader in loaders]
                while batches and any(found := [next(iterator, torch.tensor([])).tolist() for iterator in iterators]):
                    epochs[epoch].update(sample for batch in found for sample in batch)
                    batches -= 1
                if not batches:
                    break
                first_epoch = epoch + 1
            state = loaders[0].state_dict()

        said = f"{count} samples, batches of {batch_size}, ranks and batches {stops}"
        for found_in_epoch in epochs:
            if drop_last:
                most = batch_size * max(4, *(world for world, _ in stops))
                assert set(found_in_epoch.values()) <= {1}, said
                assert count - len(found_in_epoch) < most, said
            else:
                assert found_in_epoch == Counter(range(count)), said


def test_each_rank_goes_on_with_an_order_of_its_own(tmp_path: Path) -> None:
    whole = ranks(tmp_path, "own", "a", 2, 2)
    again = ranks(tmp_path, "own", "b", 2, 99)

    assert whole[0][0] != whole[1][0]
    assert [found for found, _ in again] == [found[8:] for found, _ in whole]
    assert [inexact for _, inexact in again] == [[], []]


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (4, 4)])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:resuming from 1")
def test_a_stateful_loader_of_accelerate_says_how_many_samples_other_batches_read_again_or_never(
    sizes: tuple[int, int], workers: int, tmp_path: Path
) -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    store = Store.init(tmp_path / "store")
    read: list[int] = []
    kept: Any = None
    for attempt, batch_size in enumerate(sizes):
        options = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=options)
        kept = install(accelerator, store)
        data: Any = range(22)
        loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size, shuffle=True, num_workers=workers))
        if attempt:
            accelerator.load_state("ckstore:1")
        for at, batch in enumerate(loader, 1):
            read += batch.tolist()
            if at == 3 and not attempt:
                accelerator.save_state(str(tmp_path / "state"), step=1)
                break

    changed = len(read) - 22
    said = [sentence for sentence in kept.resumed_inexactly if "samples" in sentence]
    if changed > 0:
        assert said == [f"{changed} samples of the epoch will be read a second time"]
    else:
        assert said == ([f"{-changed} samples of the epoch will never be read"] if changed else [])
    check_store(store.path)
