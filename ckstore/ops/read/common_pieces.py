"""What two checkpoints have in common at the same place of the same tensor, so that it need not be read again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate

from ckstore.model.manifest.manifest import Extent, LeafRecord, Manifest
from ckstore.model.manifest.stored import OldPiece

HeldExtents = dict[int, frozenset[int]]
"""Storage of the newer checkpoint -> the first bytes of those of its extents that the older one has there, too."""
OldPieces = dict[int, dict[int, OldPiece]]
"""Storage of the newer checkpoint -> the first bytes of its other extents -> what the older one has there, as long."""


def unchanged(before: Manifest, after: Manifest, loaded: Collection[str] | None = None) -> HeldExtents:
    """Return which bytes of `after` a target that was loaded from `before` has already."""
    found: HeldExtents = {}
    for storage, pairs in _pairs(before, after, loaded):
        same = frozenset(at for at, old, new in pairs if old.piece == new.piece)
        if same:
            found[storage] = same
    return found


def old_pieces(before: Manifest, after: Manifest, loaded: Collection[str] | None = None) -> OldPieces:
    """Return what a target that was loaded from `before` has where `after` has something else."""
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
    """Give for storages of `after` where extents of one length begin at the same byte in both, with these two."""
    # A storage counts if all its leaves were together in one storage of `before`, under the same names and laid out the
    # same: then a target of these leaves holds that storage's bytes at the same places. `before`: the manifest of the
    # checkpoint that was loaded. `after`: that of the one to be loaded. `loaded`: names of the leaves of `before` that
    # the target took; None: all.
    old = {leaf.name: leaf for leaf in before.leaves if loaded is None or leaf.name in loaded}
    by_storage: dict[int, list[LeafRecord]] = defaultdict(list)
    for leaf in after.leaves:
        by_storage[leaf.storage].append(leaf)
    for storage, leaves in by_storage.items():
        old_storage = _old_storage(old, leaves)
        # Pieces of tiles are not in row-major order, so equal pieces do not mean equal places.
        if old_storage is None or before.storages[old_storage].tiling or after.storages[storage].tiling:  # read whole
            continue
        there = _places(before, old_storage)
        places = _places(after, storage).items()
        yield (storage, [(at, there[at], new) for at, new in places if at in there and there[at].length == new.length])


def _old_storage(old: Mapping[str, LeafRecord], leaves: list[LeafRecord]) -> int | None:
    """Return the storage in which all the leaves were, laid out as they are; None: there is none."""
    old_storage = {old[leaf.name].storage for leaf in leaves if leaf.name in old}
    # Tensors that came together from two storages, or parted from one, lie at other places than before.
    if len(old_storage) != 1:
        return None
    storage = old_storage.pop()
    as_before = all(old.get(leaf.name) == leaf._replace(storage=storage) for leaf in leaves)
    return storage if as_before else None


def _places(manifest: Manifest, storage: int) -> dict[int, Extent]:
    """Return the pieces of a storage by where they begin."""
    extents = manifest.storages[storage].extents
    return dict(zip(accumulate((extent.length for extent in extents), initial=0), extents, strict=False))
