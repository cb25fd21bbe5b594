"""A run that goes on on another number of ranks reads each sample once, or its report counts what it does not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores import check_store

if importlib.util.find_spec("torchdata") is None:
    pytest.skip("needs torchdata: make states", allow_module_level=True)

pytestmark = [pytest.mark.integration, pytest.mark.slow]
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
        "plain": lambda: {"sampler": DistributedSampler(data, seed=3)},
        "own": lambda: {"shuffle": True},
    }[kind]()
    loader = (torch.utils.data.DataLoader if kind == "plain" else StatefulDataLoader)(data, batch_size=4, **options)
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


def test_each_rank_goes_on_with_an_order_of_its_own(tmp_path: Path) -> None:
    whole = ranks(tmp_path, "own", "a", 2, 2)
    again = ranks(tmp_path, "own", "b", 2, 99)

    assert whole[0][0] != whole[1][0]
    assert [found for found, _ in again] == [found[8:] for found, _ in whole]
    assert [inexact for _, inexact in again] == [[], []]
