"""Laws of how tensors are cut for ranks and put together again."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore.model.manifest.tensor_cuts import (
    Block,
    bands,
    block_of,
    cut_block,
    cut_flat,
    fill_exactly,
    flat_start,
    in_bytes,
)

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Block]]:
    """A shape, and the blocks of a grid of ranks over it."""
    shape = draw(shapes)
    blocks = [Block((), ())]
    for size in shape:
        inner = st.sets(st.integers(1, size - 1), max_size=3) if size > 1 else st.just(set())
        cuts = sorted({0, size, *draw(inner)})
        ranges = list(zip(cuts, [b - a for a, b in itertools.pairwise(cuts)], strict=False))
        blocks = [Block((*b.offsets, start), (*b.sizes, count)) for b in blocks for start, count in ranges]
    return shape, blocks


@settings(deadline=None)
@given(grids(), st.integers(1, 40))
def test_the_pieces_of_a_grid_fill_the_tensor_exactly_in_the_order_of_each_block(
    grid: tuple[tuple[int, ...], list[Block]], chunk_bytes: int
) -> None:
    shape, blocks = grid
    pieces = [piece for block in blocks for piece in cut_block(shape, block, chunk_bytes)]

    assert fill_exactly(shape, pieces)
    assert all(piece.nbytes <= chunk_bytes for piece in pieces)
    whole = np.arange(math.prod(shape)).reshape(shape)
    for block in blocks:
        part = _of(whole, block).ravel()
        row = np.concatenate([_of(whole, piece).ravel() for piece in cut_block(shape, block, chunk_bytes)])
        assert np.array_equal(part, row)
    assert sum(band.rows for band in bands(pieces)) == shape[0]
    assert sorted(i for band in bands(pieces) for i in band.blocks) == list(range(len(pieces)))


@settings(deadline=None)
@given(grids(), st.data())
def test_blocks_with_a_gap_or_over_one_another_do_not_fill(
    grid: tuple[tuple[int, ...], list[Block]], data: st.DataObject
) -> None:
    shape, blocks = grid
    i = data.draw(st.integers(0, len(blocks) - 1))

    assert fill_exactly(shape, blocks)
    assert not fill_exactly(shape, blocks[:i] + blocks[i + 1 :])
    assert not fill_exactly(shape, [*blocks, blocks[i]])


@settings(deadline=None)
@given(grids())
def test_a_block_that_lies_in_one_row_is_said_to_begin_where_it_does(
    grid: tuple[tuple[int, ...], list[Block]],
) -> None:
    shape, blocks = grid
    whole = np.arange(math.prod(shape)).reshape(shape)
    for block in blocks:
        row = _of(whole, block).ravel()
        in_one_row = bool((np.diff(row) == 1).all())

        start = flat_start(shape, block)
        if start is not None:
            assert in_one_row
            assert start == row[0]


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 30))
def test_rows_of_bytes_are_cut_at_the_same_places_wherever_they_begin(start: int, count: int, chunk_bytes: int) -> None:
    pieces = list(cut_flat(start, start + count, chunk_bytes))

    assert [low for low, _ in pieces][1:] == [high for _, high in pieces][:-1]
    assert (pieces[0][0], pieces[-1][1]) == (start, start + count)
    assert all(low % chunk_bytes == 0 for low, _ in pieces[1:])


def test_the_last_dimension_is_in_bytes() -> None:
    assert in_bytes((3, 5), 4) == (3, 20)
    assert in_bytes((), 8) == (8,)
    assert block_of((1, 2), (2, 3), 4) == Block((1, 8), (2, 12))
    assert block_of((), (), 8) == Block((0,), (8,))


def _of(whole: np.ndarray, block: Block) -> np.ndarray:
    at = tuple(slice(a, a + n) for a, n in zip(block.offsets, block.sizes, strict=True))
    return whole[at]
