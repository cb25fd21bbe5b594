"""A sampler that goes on within an epoch on another number of ranks gives each sample once."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore import BadInput
from ckstore.training import ElasticSampler

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


def test_a_place_holds_for_the_next_iterator_and_for_its_own_epoch() -> None:
    sampler = ElasticSampler(6, shuffle=False)
    sampler.load_state_dict({"epoch": 1, "done": 4})

    assert sampler.state_dict() == {"epoch": 1, "done": 4}
    assert [*sampler] == [4, 5]
    assert [*sampler] == [0, 1, 2, 3, 4, 5]
    sampler.load_state_dict({"epoch": 1, "done": 4})
    sampler.set_epoch(2)
    assert [*sampler] == [0, 1, 2, 3, 4, 5]


def test_arguments_that_name_no_share_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"remainder": "keep"}, {"rank": 0}, {"world_size": 2, "rank": 2}]

    for options in wrong:
        with pytest.raises(BadInput):
            ElasticSampler(4, **options)
