"""How a tensor that several ranks hold in parts is cut, and how the parts make the whole again.

A *block* is a part of a tensor: where it begins in each dimension, and its sizes. The last dimension is counted in
bytes, so that nothing here knows of dtypes. Cuts are at fixed places of the **whole** tensor, so that the same values
give the same pieces however many ranks save them. Source: docs/format/v1.md, "Shards".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Sizes = tuple[int, ...]
TILE_DIMENSIONS_MOST = 64


class Block(NamedTuple):
    """A part of a tensor: its first place and its size in each dimension, the last one in bytes."""

    offsets: Sizes
    sizes: Sizes

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.sizes)

    def meet(self, other: Block) -> Block | None:
        """Return what both have in common; None if that is nothing."""
        offsets, sizes = [], []
        for a, n, b, m in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True):
            low, high = max(a, b), min(a + n, b + m)
            if low >= high:
                return None
            offsets.append(low)
            sizes.append(high - low)
        return Block(tuple(offsets), tuple(sizes))


def in_bytes(shape: Sequence[int], item_bytes: int) -> Sizes:
    """Return a shape with the last dimension in bytes; a scalar has one dimension then."""
    return (*shape[:-1], shape[-1] * item_bytes) if shape else (item_bytes,)


def block_of(offsets: Sequence[int], sizes: Sequence[int], item_bytes: int) -> Block:
    """Return the block of a tensor whose places are counted in elements."""
    if not sizes:
        return Block((0,), (item_bytes,))
    return Block(in_bytes(offsets, item_bytes), in_bytes(sizes, item_bytes))


def flat_start(shape: Sizes, block: Block) -> int | None:
    """Return at which byte of the row-major tensor a block begins that lies there in one row; None if it does not."""
    first = next((i for i, size in enumerate(block.sizes) if size != 1), len(shape))
    if any(block.sizes[i] != shape[i] for i in range(first + 1, len(shape))):
        return None
    return sum(offset * math.prod(shape[i + 1 :]) for i, offset in enumerate(block.offsets))


def cut_flat(start: int, stop: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut bytes of a row-major tensor at the multiples of `chunk_bytes`."""
    while start < stop:
        # At multiples in the whole tensor, not in the part: with another number of ranks the same values give the same
        # pieces.
        end = min(stop, (start // chunk_bytes + 1) * chunk_bytes)
        yield start, end
        start = end


def cut_block(shape: Sizes, block: Block, chunk_bytes: int, dim: int = 0) -> Iterator[Block]:
    """Cut a block that is no row of bytes, in the order of its own bytes: each piece is a row of bytes of the block."""
    # It is cut where the rows of the whole tensor fill a chunk, so that the pieces of all blocks there make one chunk.
    # Before `dim` it is cut already.
    row_bytes = math.prod(shape[dim + 1 :])
    step = max(1, chunk_bytes // row_bytes)
    first, count = block.offsets[dim], block.sizes[dim]
    for start, stop in cut_flat(first, first + count, step):
        piece = Block(_with(block.offsets, dim, start), _with(block.sizes, dim, stop - start))
        if row_bytes > chunk_bytes:  # by the row of the whole, so that all blocks there are cut alike
            yield from cut_block(shape, piece, chunk_bytes, dim + 1)
        else:
            yield piece


def _with(sizes: Sizes, dim: int, value: int) -> Sizes:
    return (*sizes[:dim], value, *sizes[dim + 1 :])


def fill_exactly(shape: Sizes, blocks: Sequence[Block], dim: int = 0) -> bool:
    """Whether the blocks cover a tensor without a gap and without lying over one another, in the way that grids do."""
    # In each dimension, from the first on, those that begin together must end together; so a grid of ranks with
    # boundaries of its own in each dimension fits. Before `dim` they are alike.
    if dim == len(shape):
        return len(blocks) == 1
    groups: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.offsets[dim], block.sizes[dim]), []).append(block)
    at = 0
    for start, size in sorted(groups):
        # A gap would be bytes of other memory in a tensor, an overlap two values for one element.
        if start != at or size < 1:
            return False
        at += size
    return at == shape[dim] and all(fill_exactly(shape, group, dim + 1) for group in groups.values())


class Band(NamedTuple):
    """Blocks that have the same place and size in the first dimension: which rows, and the numbers of the blocks."""

    start: int
    rows: int
    blocks: list[int]


def bands(blocks: Sequence[Block]) -> list[Band]:
    """Return the bands of blocks that fill a tensor exactly, by rising start."""
    found: dict[int, Band] = {}
    for i, block in enumerate(blocks):
        start = block.offsets[0]
        found.setdefault(start, Band(start, block.sizes[0], [])).blocks.append(i)
    return [found[start] for start in sorted(found)]
