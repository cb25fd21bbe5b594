"""Strided tensors, gathered block by block: the law is NumPy's own view of the same memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.tensors.strided import blocks, gather, runs_of


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """Draw shape and strides, then the bytes before the first element and of each, of a view that has elements."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    strides = tuple(draw(st.integers(-7, 30)) for _ in shape)
    item_bytes = draw(st.sampled_from([1, 2, 4, 8, 16]))
    before = -sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if stride < 0)
    return shape, strides, before * item_bytes + draw(st.integers(0, 3)), item_bytes


@pytest.mark.property
@given(views(), st.integers(1, 200))
def test_blocks_put_together_are_the_tensor(
    view: tuple[tuple[int, ...], tuple[int, ...], int, int], most_bytes: int
) -> None:
    shape, strides, offset, item_bytes = view
    reach = sum(max(0, (size - 1) * stride) for size, stride in zip(shape, strides, strict=True))
    memory = np.random.default_rng(0).bytes(offset + item_bytes * (1 + reach))
    steps = tuple(stride * item_bytes for stride in strides)
    wanted = np.ndarray(shape, f"V{item_bytes}", memory, offset, steps).tobytes()

    out = bytearray(len(wanted))
    for block in blocks(shape, strides, offset, item_bytes, most_bytes):
        data = gather(block, strides, item_bytes, memoryview(memory)[block.low : block.high])
        runs = runs_of(block, shape, item_bytes)
        for i, start in enumerate(runs):
            out[start : start + runs.nbytes] = data[i * runs.nbytes : (i + 1) * runs.nbytes]
        assert max(block.high - block.low, len(data)) <= max(most_bytes, item_bytes)

    assert out == wanted


@pytest.mark.parametrize("shape, strides", [((64, 48), (1, 64)), ((64, 48), (48, 1)), ((4, 8, 6, 6), (288, 1, 48, 8))])
def test_each_byte_of_a_permuted_tensor_is_in_one_block_and_they_come_in_order(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    found = list(blocks(shape, strides, 0, 4, 1000))

    assert [block.low for block in found] == sorted(block.low for block in found)
    assert sum(block.high - block.low for block in found) == 4 * math.prod(shape)


def test_a_transposed_tensor_is_written_in_rows_as_long_as_the_block_allows() -> None:
    block = next(iter(blocks((512, 1024), (1, 512), 0, 4, 2**20)))

    assert runs_of(block, (512, 1024), 4).nbytes == 4 * 512
    assert len(list(runs_of(block, (512, 1024), 4))) == 512
