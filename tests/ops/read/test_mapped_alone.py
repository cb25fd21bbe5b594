"""Mapped leaves of the same bytes have one place in the store, and memory of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckstore import Store
from tests.support.examples import examples

MIB = 2**20
SIZES = [1, 8, 5000, MIB, MIB + 4096, 3 * MIB]
"""Packed, a blob for itself, and several blobs, with chunks of a MiB."""


def filled(kind: str, value: int, nbytes: int) -> Any:
    """An array or a tensor of `nbytes` bytes that are all `value`."""
    return np.full(nbytes, value, np.uint8) if kind == "numpy" else torch.full((nbytes,), value, dtype=torch.uint8)


leaves = st.tuples(st.sampled_from(["torch", "numpy"]), st.integers(0, 2), st.sampled_from(SIZES))


@settings(deadline=None, max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(described=st.lists(leaves, min_size=2, max_size=8), verify=st.booleans())
@example(described=[("torch", 0, size) for size in SIZES for _ in range(3)], verify=False)
@example(described=[("numpy", 0, size) for size in SIZES for _ in range(3)], verify=True)
def test_what_is_written_to_one_is_seen_in_no_other(
    store: Store, described: list[tuple[str, int, int]], *, verify: bool
) -> None:
    info = store.save([filled(*one) for one in described])

    loaded: Any = store.load(info, mmap=True, verify=verify)
    for number, leaf in enumerate(loaded):
        assert (leaf == described[number][1]).all()
        leaf[:] = 100 + number

    for number, leaf in enumerate(loaded):
        assert (leaf == 100 + number).all()
    again: Any = store.load(info)
    assert all((leaf == value).all() for leaf, (_, value, _) in zip(again, described, strict=True))


def test_what_was_tied_stays_tied(store: Store) -> None:
    weight = torch.zeros(MIB // 4)
    store.save({"a": weight, "b": weight, "c": weight.clone()})

    loaded: Any = store.load(mmap=True)
    loaded["a"][0] = 1

    assert (loaded["b"][0], loaded["c"][0]) == (1, 0)


@pytest.mark.parametrize("nbytes", [8, 5000])
def test_a_thousand_small_ones_that_are_equal_take_few_mappings(store: Store, nbytes: int) -> None:
    store.save([filled("torch", number % 2, nbytes) for number in range(1000)])
    before = mappings()

    loaded: Any = store.load(mmap=True)

    assert mappings() < before + 20
    assert len({leaf.data_ptr() for leaf in loaded}) == 1000


def mappings() -> int:
    """How many ranges of memory this process has."""
    return len(Path("/proc/self/maps").read_text().splitlines())
