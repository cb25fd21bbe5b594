"""A sampler that goes on within an epoch on another number of ranks gives each sample once."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore import BadInput, Store
from ckstore.training import ElasticSampler, capture, restore
from tests.support.stores import check_store

WORLDS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=6)
"""How many ranks there are, and how many samples each of them reads before the next restart."""


def read(count: int, worlds: list[tuple[int, int]], last: int, remainder: Any) -> list[list[int]]:
    """Return what each rank reads of an epoch that stops and goes on on other numbers of ranks."""
    found: list[list[int]] = []
    state = {"epoch": 3, "done": 0}
    for world_size, samples in [*worlds, (last, count + 5)]:
        ranks = [
            ElasticSampler(count, world_size=world_size, rank=rank, seed=7, remainder=remainder)
            for rank in range(world_size)
        ]
        for sampler in ranks:
            sampler.load_state_dict(state)
            sampler.set_epoch(3)
        mine = [[*islice(sampler, samples)] for sampler in ranks]
        found += mine
        # What rank 0 says is saved. With `share` it is the last to have no sample left.
        state = ranks[0].state_dict()
        if remainder != "share":
            assert len({len(samples_of_rank) for samples_of_rank in mine}) == 1
            assert all(sampler.state_dict() == state for sampler in ranks)
    return found


@pytest.mark.property
@given(count=st.integers(0, 40), worlds=WORLDS, last=st.integers(1, 5))
def test_each_sample_is_given_once_on_any_numbers_of_ranks(
    count: int, worlds: list[tuple[int, int]], last: int
) -> None:
    given_out = Counter(sample for rank in read(count, worlds, last, "share") for sample in rank)

    assert given_out == Counter(range(count))


@pytest.mark.property
@given(count=st.integers(0, 40), worlds=WORLDS, last=st.integers(1, 5))
def test_all_ranks_have_as_many_samples_if_those_that_are_left_are_repeated_or_dropped(
    count: int, worlds: list[tuple[int, int]], last: int
) -> None:
    repeated = Counter(sample for rank in read(count, worlds, last, "repeat") for sample in rank)
    dropped = Counter(sample for rank in read(count, worlds, last, "drop") for sample in rank)

    most = max([last, *(world_size for world_size, _ in worlds)])
    assert set(repeated) == set(range(count))
    assert sum(repeated.values()) - count < most
    assert set(dropped.values()) <= {1}
    assert count - len(dropped) < most


def epochs_in_batches(
    count: int, stops: list[tuple[int, int]], last: int, batch_size: int, *, drop_last: bool
) -> list[Counter[int]]:
    """Return what all ranks together read in each of three epochs, with a new program after each stop.

    A stop is a number of ranks, and the number of batches that each of them reads.
    """
    found: list[Counter[int]] = [Counter() for _ in range(3)]
    state: dict[str, int] | None = None
    for seed, (world_size, most_batches) in enumerate([*stops, (last, 10**6)]):
        batches = most_batches
        samplers = [
            ElasticSampler(count, world_size=world_size, rank=rank, seed=seed, remainder="share")
            for rank in range(world_size)
        ]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        for epoch in range(samplers[0].epoch, 3):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            loaders = [
                iter(torch.utils.data.BatchSampler(sampler, batch_size, drop_last=drop_last)) for sampler in samplers
            ]
            # All ranks read a batch, and then the next one, as in a training. Some may end one batch earlier.
            while batches and any(read_now := [next(loader, []) for loader in loaders]):
                found[epoch].update(sample for batch in read_now for sample in batch)
                batches -= 1
            if not batches:
                break
        state = samplers[0].state_dict()
    return found


@pytest.mark.property
@given(
    count=st.integers(0, 30),
    stops=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), max_size=5),
    last=st.integers(1, 4),
    batch_size=st.integers(1, 5),
)
def test_each_sample_is_read_once_in_each_epoch_in_batches_on_any_numbers_of_ranks(
    count: int, stops: list[tuple[int, int]], last: int, batch_size: int
) -> None:
    whole = epochs_in_batches(count, stops, last, batch_size, drop_last=False)
    dropped = epochs_in_batches(count, stops, last, batch_size, drop_last=True)

    assert whole == [Counter(range(count))] * 3
    most = max([last, *(world_size for world_size, _ in stops)]) * batch_size
    for epoch in dropped:
        assert set(epoch.values()) <= {1}
        assert count - len(epoch) < most  # only what fills no batch on each rank at the end of the epoch


def test_a_position_keeps_the_seed_of_its_order() -> None:
    first = ElasticSampler(9, seed=5)
    read_before = [*islice(first, 4)]
    later = ElasticSampler(9, seed=6)
    later.load_state_dict(first.state_dict())
    older = ElasticSampler(9, seed=6)
    older.load_state_dict({"epoch": 0, "done": 4})  # as a release without the seed saved it

    assert sorted([*read_before, *later]) == [*range(9)]
    assert later.seed == 5
    assert older.seed == 6


_RANK = textwrap.dedent("""
    import json, sys
    import torch, torch.distributed as dist
    from ckstore import Store
    from ckstore.training import ElasticSampler, capture, restore

    folder, tag, rank, world, batches = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    dist.init_process_group("gloo", init_method=f"file://{folder}/{tag}", rank=rank, world_size=world)
    sampler = ElasticSampler(46, seed=world)
    loader = torch.utils.data.DataLoader(range(46), batch_size=4, sampler=sampler)
    store = Store.open(f"{folder}/store")
    if store.latest() is not None:
        restore(store, sampler=sampler)
    found = []
    for epoch in range(sampler.epoch, 2):
        sampler.set_epoch(epoch)
        for batch in loader:
            found.append([epoch, batch.tolist()])
            batches -= 1
            if not batches:
                break
        if not batches:
            break
    state = capture(sampler=sampler)
    if rank == 0:
        store.save(state)
    dist.barrier()
    print(json.dumps(found))
""")


@pytest.mark.slow
def test_on_two_ranks_one_and_two_each_sample_is_read_once_an_epoch(warm: Path, tmp_path: Path) -> None:
    Store.init(tmp_path / "store")
    epochs = [Counter[int](), Counter[int]()]
    for tag, world, batches in [("a", 2, 2), ("b", 1, 4), ("c", 2, 5), ("d", 1, 1), ("e", 2, -1)]:
        words = [str(warm / "python"), "-c", _RANK, str(tmp_path), tag]
        running = [
            subprocess.Popen([*words, str(rank), str(world), str(batches)], stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        outputs = [process.communicate(timeout=240)[0] for process in running]
        assert [process.returncode for process in running] == [0] * world
        for output in outputs:
            for epoch, batch in json.loads(output.splitlines()[-1]):
                epochs[epoch].update(batch)

    assert epochs == [Counter(range(46))] * 2
    check_store(tmp_path / "store")


def test_the_order_is_that_of_torch_and_each_epoch_has_its_own() -> None:
    numbers: Any = range(11)
    for rank in range(2):
        own = ElasticSampler(numbers, world_size=2, rank=rank, seed=5)
        of_torch: Any = torch.utils.data.DistributedSampler(numbers, 2, rank, seed=5)
        for epoch in (0, 1):
            own.set_epoch(epoch)
            of_torch.set_epoch(epoch)

            assert [*own] == [*of_torch]
            assert len(own) == len(of_torch) == 6
    assert [*ElasticSampler(4, shuffle=False)] == [0, 1, 2, 3]


def test_the_order_does_not_depend_on_the_default_device() -> None:
    right = [*ElasticSampler(20, seed=5)]

    with torch.device("meta"):
        found = [*ElasticSampler(20, seed=5)]

    assert found == right


def test_a_place_holds_for_the_next_iterator_and_for_its_own_epoch() -> None:
    sampler = ElasticSampler(6, shuffle=False)
    sampler.load_state_dict({"epoch": 1, "done": 4})

    assert sampler.state_dict() == {"epoch": 1, "done": 4, "seed": 0}
    assert [*sampler] == [4, 5]
    assert [*sampler] == [0, 1, 2, 3, 4, 5]
    sampler.load_state_dict({"epoch": 1, "done": 4})
    sampler.set_epoch(2)
    assert [*sampler] == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_plain_loader_whose_sampler_is_a_part_continues_inside_an_epoch(tmp_path: Path) -> None:
    def loader(seed: int) -> Any:
        numbers: Any = range(20)
        return torch.utils.data.DataLoader(numbers, 3, sampler=ElasticSampler(numbers, seed=seed))

    mine, again = loader(1), loader(2)
    batches = iter(mine)
    next(batches)
    with Store.init(tmp_path / "store") as store:
        store.save(capture(dataloader=mine, sampler=mine.sampler), step=1)
        store.save(capture(dataloader=mine), step=2)
        rest = [batch.tolist() for batch in batches]
        report = restore(store, 1, dataloader=again, sampler=again.sampler)

        assert [batch.tolist() for batch in again] == rest
        assert report.inexact == ()
        assert "3 samples of the epoch will be read a second time" in restore(store, 2, dataloader=again).inexact


@pytest.mark.parametrize("count", [8, 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_run_that_was_saved_after_an_epoch_begins_the_next_one(
    tmp_path: Path, count: int, *, drop_last: bool
) -> None:
    def loader() -> Any:
        numbers: Any = range(count)
        sampler = ElasticSampler(numbers, shuffle=False)
        return torch.utils.data.DataLoader(numbers, 4, sampler=sampler, drop_last=drop_last)

    mine, again, named = loader(), loader(), loader()
    epoch = [batch.tolist() for batch in mine]
    with Store.init(tmp_path / "store") as store:
        store.save(capture(dataloader=mine, sampler=mine.sampler), step=1)
        for one in (again, named):
            assert restore(store, dataloader=one, sampler=one.sampler).inexact == ()

    named.sampler.set_epoch(0)
    assert [batch.tolist() for batch in named] == []  # the program continues an epoch that is over
    for one in (again, named, mine):
        assert [batch.tolist() for batch in one] == epoch


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_run_that_was_saved_in_the_last_batch_has_no_rest_of_the_epoch(tmp_path: Path) -> None:
    numbers: Any = range(10)
    mine, again = (
        torch.utils.data.DataLoader(numbers, 4, sampler=ElasticSampler(numbers, shuffle=False)) for _ in range(2)
    )
    batches = iter(mine)
    epoch = [next(batches).tolist() for _ in range(3)]
    with Store.init(tmp_path / "store") as store:
        store.save(capture(dataloader=mine, sampler=mine.sampler), step=1)
        assert restore(store, dataloader=again, sampler=again.sampler).inexact == ()

    assert [*batches] == [*again] == []
    assert [batch.tolist() for batch in again] == epoch


def test_arguments_that_name_no_share_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"remainder": "keep"}, {"rank": 0}, {"world_size": 2, "rank": 2}]

    for options in wrong:
        with pytest.raises(BadInput):
            ElasticSampler(4, **options)
