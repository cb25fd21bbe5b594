"""Cut a tensor of which several ranks hold parts, and find the places of the parts in the whole tensor.

A *block* is a part of a tensor, given by its start and its size in each dimension. The last dimension is counted in
bytes, so that this module is independent of dtypes. Cuts are at fixed positions in the **whole** tensor, so that the
same values give the same pieces with any number of ranks. Source: docs/format/v1.md, "Shards".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Sizes = tuple[int, ...]
TILE_DIMENSIONS_MOST = 64


class Block(NamedTuple):
    """A part of a tensor, given by its start and size in each dimension, the last one in bytes."""

    offsets: Sizes
    sizes: Sizes

    @property
    def nbytes(self) -> int:
        """The number of bytes in the block."""
        return math.prod(self.sizes)

    def meet(self, other: Block) -> Block | None:
        """Return the intersection of this block and `other`, or None if it is empty."""
        offsets, sizes = [], []
        for a, n, b, m in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True):
            low, high = max(a, b), min(a + n, b + m)
            if low >= high:
                return None
            offsets.append(low)
            sizes.append(high - low)
        return Block(tuple(offsets), tuple(sizes))


def in_bytes(shape: Sequence[int], item_bytes: int) -> Sizes:
    """Return a shape with the last dimension in bytes; for a scalar, the result has one dimension."""
    return (*shape[:-1], shape[-1] * item_bytes) if shape else (item_bytes,)


def block_of(offsets: Sequence[int], sizes: Sequence[int], item_bytes: int) -> Block:
    """Return the block of a tensor with these offsets and sizes, which are given in elements."""
    if not sizes:
        return Block((0,), (item_bytes,))
    return Block(in_bytes(offsets, item_bytes), in_bytes(sizes, item_bytes))


def flat_start(shape: Sizes, block: Block) -> int | None:
    """Return the offset in bytes of a block in the row-major tensor, or None if the block is not contiguous in it."""
    first = next((i for i, size in enumerate(block.sizes) if size != 1), len(shape))
    if any(block.sizes[i] != shape[i] for i in range(first + 1, len(shape))):
        return None
    return sum(offset * math.prod(shape[i + 1 :]) for i, offset in enumerate(block.offsets))


def span(shape: Sizes, block: Block) -> tuple[int, int]:
    """Return the offset of the first byte of a block in the row-major tensor, and the offset after the last byte."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    first = sum(offset * stride for offset, stride in zip(block.offsets, strides, strict=True))
    return first, first + 1 + sum((size - 1) * stride for size, stride in zip(block.sizes, strides, strict=True))


def cut_flat(start: int, stop: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut bytes `start` to `stop` of a row-major tensor at the multiples of `chunk_bytes`."""
    while start < stop:
        # Cut at multiples in the whole tensor and not in the part, so that the same values give the same pieces with
        # another number of ranks.
        end = min(stop, (start // chunk_bytes + 1) * chunk_bytes)
        yield start, end
        start = end


def cut_block(shape: Sizes, block: Block, chunk_bytes: int, dim: int = 0) -> Iterator[Block]:
    """Cut a block that is not contiguous in the tensor into pieces that are contiguous in the block.

    The pieces are yielded in the order of the block.

    A cut is made wherever rows of the whole tensor fill a chunk. The pieces of all blocks between two cuts therefore
    form one chunk. The dimensions before `dim` are already cut.
    """
    row_bytes = math.prod(shape[dim + 1 :])
    step = max(1, chunk_bytes // row_bytes)
    first, count = block.offsets[dim], block.sizes[dim]
    for start, stop in cut_flat(first, first + count, step):
        piece = Block(_with(block.offsets, dim, start), _with(block.sizes, dim, stop - start))
        if row_bytes > chunk_bytes:  # use the size of whole rows, so that all blocks in this range are cut alike
            yield from cut_block(shape, piece, chunk_bytes, dim + 1)
        else:
            yield piece


def _with(sizes: Sizes, dim: int, value: int) -> Sizes:
    return (*sizes[:dim], value, *sizes[dim + 1 :])


def fill_exactly(shape: Sizes, blocks: Sequence[Block], dim: int = 0) -> bool:
    """Return whether blocks cover a tensor without gaps or overlaps, like a grid.

    In each dimension, starting with the first, blocks with the same start must have the same end. A grid of ranks
    satisfies this condition, even if the boundaries in one dimension differ from those in another. In each dimension
    before `dim`, all blocks must have the same start and size.
    """
    if dim == len(shape):
        return len(blocks) == 1
    groups: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.offsets[dim], block.sizes[dim]), []).append(block)
    at = 0
    for start, size in sorted(groups):
        # A gap would leave bytes of other memory in a tensor. An overlap would give two values for one element.
        if start != at or size < 1:
            return False
        at += size
    return at == shape[dim] and all(fill_exactly(shape, group, dim + 1) for group in groups.values())


class Band(NamedTuple):
    """Blocks with the same start and number of rows in the first dimension; `blocks` has the indexes of the blocks."""

    start: int
    rows: int
    blocks: list[int]


def bands(blocks: Sequence[Block]) -> list[Band]:
    """Return the bands of blocks that fill a tensor exactly, in ascending order of their start."""
    found: dict[int, Band] = {}
    for i, block in enumerate(blocks):
        start = block.offsets[0]
        found.setdefault(start, Band(start, block.sizes[0], [])).blocks.append(i)
    return [found[start] for start in sorted(found)]
