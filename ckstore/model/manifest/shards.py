"""Read the tilings of storages in a manifest. Source: docs/format/v1.md, "Shards"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ckstore.model.document import refuse
from ckstore.model.manifest.manifest import Extent, Tiling
from ckstore.model.manifest.tensor_cuts import TILE_DIMENSIONS_MOST, Block, Sizes, fill_exactly


def read_tiling(item: Any, nbytes: int, extents: Sequence[Extent], name: str, where: str) -> Tiling:
    """Return the tiling of a storage, after checking it against the extents of the storage."""
    if type(item) is not list or len(item) != 2 or type(item[1]) is not list:
        refuse(where, f"tiling of {name}", "[shape, blocks]", item)
    shape = _sizes(item[0], f"shape of the tiling of {name}", where)
    total = math.prod(shape)
    if total != nbytes:
        refuse(where, f"shape of the tiling of {name}", f"{nbytes} bytes", total)
    if len(item[1]) != len(extents):
        refuse(where, f"blocks of {name}", f"one for each of {len(extents)} extents", len(item[1]))
    blocks = []
    for pair, extent in zip(item[1], extents, strict=True):
        if type(pair) is not list or len(pair) != 2:
            refuse(where, f"a block of {name}", "[offsets, sizes]", pair)
        block = Block(*(_sizes(one, f"a block of {name}", where) for one in pair))
        if len(block.offsets) != len(shape) or len(block.sizes) != len(shape) or block.nbytes != extent.length:
            refuse(where, f"a block of {name}", f"{len(shape)} dimensions and {extent.length} bytes", pair)
        blocks.append(block)
    if not fill_exactly(shape, blocks):
        refuse(where, f"blocks of {name}", "blocks that fill the tensor exactly", "others", words=True)
    return Tiling(shape, tuple(blocks))


def _sizes(item: Any, name: str, where: str) -> Sizes:
    if type(item) is not list or not 1 <= len(item) <= TILE_DIMENSIONS_MOST:
        refuse(where, name, f"an array of 1 to {TILE_DIMENSIONS_MOST} sizes", item)
    if any(type(size) is not int or size < 0 for size in item):
        refuse(where, name, "integers from 0", item)
    return tuple(item)
