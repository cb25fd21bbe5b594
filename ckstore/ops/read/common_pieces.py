"""Compare two checkpoints piece by piece, so that a load into a filled target reads only the changed pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate

from ckstore.model.manifest.manifest import Extent, LeafRecord, Manifest
from ckstore.model.manifest.stored import OldPiece

HeldExtents = dict[int, frozenset[int]]
"""Storage of the newer checkpoint -> the starts of the extents that are equal in the older checkpoint."""
OldPieces = dict[int, dict[int, OldPiece]]
"""Storage of the newer checkpoint -> start of a differing extent -> the older checkpoint's piece at the same place.

The older and the newer piece have the same length.
"""


def unchanged(before: Manifest, after: Manifest, loaded: Collection[str] | None = None) -> HeldExtents:
    """Return the extents of `after` that a target loaded from `before` already holds.

    Extents of a tiled storage are included only if both checkpoints have the same tiling.
    """
    found: HeldExtents = {}
    for storage, pairs in _pairs(before, after, loaded):
        same = frozenset(at for at, old, new in pairs if old.piece == new.piece)
        if same:
            found[storage] = same
    return found


def old_pieces(before: Manifest, after: Manifest, loaded: Collection[str] | None = None) -> OldPieces:
    """Return the older pieces that a target loaded from `before` holds at the places where `after` has other bytes."""
    return {
        storage: {
            at: OldPiece(old.piece, before.blobs[old.blob].digest, old.offset)
            for at, old, new in pairs
            if old.piece != new.piece
        }
        for storage, pairs in _pairs(before, after, loaded)
    }


def _pairs(
    before: Manifest, after: Manifest, loaded: Collection[str] | None
) -> Iterator[tuple[int, list[tuple[int, Extent, Extent]]]]:
    """Yield the comparable storages of `after`, each with its pairs of extents that have equal start and length.

    A pair consists of the start, the extent of `before` and the extent of `after`. A storage is comparable if one
    storage of `before` held all its leaves, with the same names, layout and tiling. A target that was loaded from
    `before` then holds the bytes of the older storage at the same places.

    Args:
        before: The manifest of the checkpoint that was loaded.
        after: The manifest of the checkpoint to load.
        loaded: The names of the leaves of `before` that were loaded into the target. If None, all leaves.
    """
    old = {leaf.name: leaf for leaf in before.leaves if loaded is None or leaf.name in loaded}
    by_storage: dict[int, list[LeafRecord]] = defaultdict(list)
    for leaf in after.leaves:
        by_storage[leaf.storage].append(leaf)
    for storage, leaves in by_storage.items():
        old_storage = _old_storage(old, leaves)
        # Pieces of tiles are not in row-major order, so an equal start means the same place only if the tilings are
        # equal.
        if old_storage is None or before.storages[old_storage].tiling != after.storages[storage].tiling:
            continue
        there = _places(before, old_storage)
        places = _places(after, storage).items()
        yield (storage, [(at, there[at], new) for at, new in places if at in there and there[at].length == new.length])


def _old_storage(old: Mapping[str, LeafRecord], leaves: list[LeafRecord]) -> int | None:
    """Return the older storage that held all these leaves in the same layout, or None."""
    old_storage = {old[leaf.name].storage for leaf in leaves if leaf.name in old}
    # If the tensors were in several storages, their places have changed.
    if len(old_storage) != 1:
        return None
    storage = old_storage.pop()
    as_before = all(old.get(leaf.name) == leaf._replace(storage=storage) for leaf in leaves)
    return storage if as_before else None


def _places(manifest: Manifest, storage: int) -> dict[int, Extent]:
    """Return the extents of a storage by their start."""
    extents = manifest.storages[storage].extents
    return dict(zip(accumulate((extent.length for extent in extents), initial=0), extents, strict=False))
