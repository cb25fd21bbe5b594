"""Copy the part that two blocks of one tensor have in common. The last dimension is in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ckstore.model.manifest.tiles import Block


def copy_common(source: memoryview, block: Block, out: memoryview, wanted: Block) -> None:
    """Copy what lies in both blocks from `source`, which is `block`, into `out`, which is `wanted`; both row-major."""
    common = block.meet(wanted)
    if common is None:
        return
    _part(out, wanted, common)[...] = _part(source, block, common)


def _part(data: memoryview, block: Block, common: Block) -> np.ndarray:
    array = np.frombuffer(data, dtype=np.uint8).reshape(block.sizes)
    at = [slice(a - b, a - b + n) for a, b, n in zip(common.offsets, block.offsets, common.sizes, strict=True)]
    return array[tuple(at)]
