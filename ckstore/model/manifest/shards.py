"""Read the shards and ranks in a manifest. Source: docs/format/v1.md, "Shards" and "Ranks"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ckstore.model.document import refuse, shown
from ckstore.model.manifest.manifest import MAX_DEPTH, DcpValue, Extent, RankRecord, Tiling
from ckstore.model.manifest.tensor_cuts import TILE_DIMENSIONS_MOST, Block, Sizes, fill_exactly

WORLD_SIZE_MOST = 2**20
ATTEMPT_MOST_CHARS = 200


def read_tiling(item: Any, nbytes: int, extents: Sequence[Extent], name: str, where: str) -> Tiling:
    """Return the arrangement of the extents of a storage."""
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


def read_ranks(item: Any, where: str) -> RankRecord:
    """Return the record of a save by several ranks."""
    if type(item) is not dict:
        refuse(where, "ranks", "an object", item)
    world_size = item.get("world_size")
    if type(world_size) is not int or not 1 <= world_size <= WORLD_SIZE_MOST:
        refuse(where, "ranks.world_size", f"an integer from 1 to {WORLD_SIZE_MOST}", world_size)
    attempt = item.get("attempt")
    if type(attempt) is not str or len(attempt) > ATTEMPT_MOST_CHARS:
        refuse(where, "ranks.attempt", f"a string of at most {ATTEMPT_MOST_CHARS} characters", attempt)
    hosts = item.get("hosts")
    if type(hosts) is not list or len(hosts) != world_size or any(type(host) is not str for host in hosts):
        refuse(where, "ranks.hosts", f"{world_size} strings", hosts)
    entries = item.get("entries")
    return RankRecord(world_size, attempt, tuple(hosts), None if entries is None else _entries(entries, where))


def _entries(items: Any, where: str) -> tuple[DcpValue, ...]:
    if type(items) is not list:
        refuse(where, "ranks.entries", "an array", items)
    entries = []
    seen: set[str] = set()
    for item in items:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not str or type(item[1]) is not list:
            refuse(where, "an entry of ranks", "[name, path]", item)
        name, path = item
        if len(path) >= MAX_DEPTH or any(type(key) is not str and not (type(key) is int and key >= 0) for key in path):
            refuse(where, f"path of {shown(name)}", f"fewer than {MAX_DEPTH} strings and indexes", path)
        if name in seen:
            refuse(where, "ranks.entries", "each name once", name)
        seen.add(name)
        entries.append(DcpValue(name, tuple(path)))
    return tuple(entries)
