"""A sequence number far beyond its neighbours does not count."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Manifest, render
from ckstore.model.manifest.parse import parse_facts, parse_manifest
from ckstore.model.names import MAX_SEQUENCE, WIDEST_GAP, greatest_in_order
from tests.model.manifests import XXH3, manifests
from tests.support.in_full import in_full

NUMBERS = st.lists(st.integers(1, MAX_SEQUENCE) | st.integers(1, 1000) | st.integers(WIDEST_GAP - 2, WIDEST_GAP + 2))


@given(numbers=NUMBERS)
def test_what_counts_has_no_wide_gap_before_it_and_the_next_beyond_has(numbers: list[int]) -> None:
    greatest = greatest_in_order(numbers)
    counting = sorted({0, *(number for number in numbers if number <= greatest)})
    beyond = [number for number in numbers if number > greatest]

    assert counting[-1] == greatest
    assert all(after - before <= WIDEST_GAP for before, after in itertools.pairwise(counting))
    assert not beyond or min(beyond) - greatest > WIDEST_GAP


@given(numbers=NUMBERS, made_up=st.integers(1, MAX_SEQUENCE))
def test_a_number_that_is_made_up_makes_none_that_counted_count_less(numbers: list[int], made_up: int) -> None:
    assert greatest_in_order([*numbers, made_up]) >= greatest_in_order(numbers)


@given(manifest=manifests())
def test_the_facts_are_what_the_whole_manifest_says(manifest: Manifest) -> None:
    _, data = render(manifest, XXH3)
    whole, manifest_id = parse_manifest(data, where="there")

    assert in_full(parse_facts(data, where="there")) == in_full(CheckpointInfo.of(whole, manifest_id))


@pytest.mark.parametrize("parse", [parse_facts, parse_manifest])
@settings(max_examples=10)
@given(manifest=manifests())
def test_a_number_beyond_the_greatest_is_refused(parse: Callable[..., object], manifest: Manifest) -> None:
    _, data = render(replace(manifest, sequence=MAX_SEQUENCE + 1), XXH3)

    with pytest.raises(BadInput, match=r"sequence: wanted an integer from 1 to 2\^53 - 1"):
        parse(data, where="there")
