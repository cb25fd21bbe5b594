"""Find the pieces that two checkpoints have at the same place of the same tensor, and that need not be read again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate

from ckstore.model.manifest.manifest import Extent, LeafRecord, Manifest
from ckstore.model.manifest.stored import OldPiece

HeldExtents = dict[int, frozenset[int]]
"""Storage of the newer checkpoint -> the starts of its extents that are equal in the older checkpoint."""
OldPieces = dict[int, dict[int, OldPiece]]
"""Storage of the newer checkpoint -> start of a differing extent -> the piece of the older one at the same place.

Both pieces have the same length.
"""


def unchanged(before: Manifest, after: Manifest, loaded: Collection[str] | None = None) -> HeldExtents:
    """Return the extents of `after` that a target loaded from `before` already holds.

    The extents of a storage of tiles are the same parts of the tensor only if both tilings are equal.
    """
    found: HeldExtents = {}
    for storage, pairs in _pairs(before, after, loaded):
        same = frozenset(at for at, old, new in pairs if old.piece == new.piece)
        if same:
            found[storage] = same
    return found


def old_pieces(before: Manifest, after: Manifest, loaded: Collection[str] | None = None) -> OldPieces:
    """Return the pieces that a target loaded from `before` holds where `after` has other bytes."""
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
    """Yield storages of `after` with the extents for which `before` has an extent of equal start and length.

    For each such extent, its start, the extent of `before` and the extent of `after` are yielded. A storage is included
    if all its leaves were in one storage of `before`, with the same names and layout, because a target with these
    leaves then holds the bytes of that storage at the same places.

    Args:
        before: The manifest of the checkpoint that was loaded.
        after: The manifest of the checkpoint to load.
        loaded: The names of the leaves of `before` that the target took. If None, all.
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
    """Return the storage that held all the leaves in the same layout, or None."""
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
