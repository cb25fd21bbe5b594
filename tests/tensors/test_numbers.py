"""A long list of numbers is kept as bytes, and comes back bit for bit."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.tensors.plain_values import NUMBERS_FROM_COUNT, pack_numbers, unpack_numbers
from ckstore.tensors.state_capture import capture
from tests.support.captures import Saved
from tests.support.states import floats


@given(items=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_integers_of_64_bits_come_back(items: list[int]) -> None:
    many = items * NUMBERS_FROM_COUNT
    packed = pack_numbers(many)

    assert packed is not None
    assert (packed[0], len(packed[1])) == ("int64", 8 * len(many))
    assert unpack_numbers(packed[0], memoryview(packed[1])) == many


@given(items=st.lists(floats(), min_size=1, max_size=5))
def test_every_bit_of_a_float_comes_back(items: list[float]) -> None:
    packed = pack_numbers(items * NUMBERS_FROM_COUNT)

    assert packed is not None
    back = unpack_numbers(packed[0], memoryview(packed[1]))
    assert [struct.pack(">d", x) for x in back[: len(items)]] == [struct.pack(">d", x) for x in items]


@pytest.mark.parametrize(
    "items",
    [
        [1] * (NUMBERS_FROM_COUNT - 1),
        [2**63] * NUMBERS_FROM_COUNT,
        [1.0] * NUMBERS_FROM_COUNT + [1],
        [True] * NUMBERS_FROM_COUNT + [1],
        ["a"] * NUMBERS_FROM_COUNT,
        [torch.int64] * NUMBERS_FROM_COUNT,
    ],
    ids=["short", "great", "mixed", "bool and int", "str", "dtype"],
)
def test_another_list_stays_a_list_of_values(items: list[Any]) -> None:
    saved = Saved({"a": items})

    assert saved.manifest.leaves == ()
    assert [(type(x), x) for x in saved.load()["a"]] == [(type(x), x) for x in items]


@pytest.mark.parametrize("items", [list(range(3000)), [0.5, -0.0, math.inf] * 1000, [True, False, False] * 1000])
def test_a_long_list_has_a_leaf_of_its_own_which_is_counted(items: list[Any]) -> None:
    saved = Saved({"sampler": {"permutation": items}, "x": 1})

    (leaf,) = saved.manifest.leaves
    assert (leaf.name, leaf.kind, leaf.shape) == ("sampler.permutation", "numbers", (3000,))
    assert saved.manifest.logical_bytes == 3000 * (1 if type(items[0]) is bool else 8)
    back = saved.load()["sampler"]["permutation"]
    assert type(back) is list
    assert list(map(repr, back)) == list(map(repr, items))


@pytest.mark.parametrize("change", [lambda many: many.append(1), lambda many: many.clear()], ids=["longer", "empty"])
def test_a_long_list_that_another_thread_changes_is_what_it_was(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[list[int]], None]
) -> None:
    many = list(range(3000))

    def meanwhile(values: list[Any]) -> object:
        packed = pack_numbers(values)
        change(many)
        return packed

    monkeypatch.setattr("ckstore.tensors.state_capture.pack_numbers", meanwhile)

    assert Saved({"losses": many}).load() == {"losses": list(range(3000))}


def test_a_tuple_and_a_deque_are_no_such_list() -> None:
    assert capture(tuple(range(3000))).leaves == ()


def test_a_long_list_of_a_target_is_replaced_in_place() -> None:
    target = {"a": [0]}
    mine = target["a"]

    Saved({"a": list(range(3000))}).load_into(target)

    assert target["a"] is mine
    assert mine == list(range(3000))
