"""How much of each blob a checkpoint needs: an old pack lives on because of a few small tensors that never change.

Such a pack is encoded once, by the checkpoint that needs most of it, and then in every directory that has it. So it
does not stay plain for the sake of a part of it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckstore.model.manifest.manifest import BlobRecord, Manifest
    from ckstore.model.names import CheckpointKey

_OWN = 1 / 4
"""A blob of which a checkpoint needs less is an old one; a load that decodes so little takes hardly longer."""


def needed_bytes(manifest: Manifest) -> dict[str, int]:
    """Return how many bytes of each blob a checkpoint needs."""
    parts: dict[int, dict[int, int]] = defaultdict(dict)
    for storage in manifest.storages:
        for extent in storage.extents:
            parts[extent.blob][extent.offset] = max(extent.length, parts[extent.blob].get(extent.offset, 0))
    return {blob.digest: min(blob.nbytes, sum(parts[i].values())) for i, blob in enumerate(manifest.blobs)}


def own_blobs(manifest: Manifest) -> Iterator[BlobRecord]:
    """Give the blobs of which a checkpoint needs a good part."""
    needed = needed_bytes(manifest)
    for blob in manifest.blobs:
        if needed[blob.digest] >= _OWN * blob.nbytes:
            yield blob


class Owners:
    """The checkpoint that needs most of a blob; of several the one that was noted first."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, CheckpointKey]] = {}

    def note(self, key: CheckpointKey, manifest: Manifest) -> None:
        """Note what a checkpoint needs."""
        for digest, nbytes in needed_bytes(manifest).items():
            if digest not in self._found or nbytes > self._found[digest][0]:
                self._found[digest] = nbytes, key

    def is_of(self, digest: str, key: CheckpointKey) -> bool:
        """Whether a blob is to be encoded with this checkpoint."""
        return self._found.get(digest, (0, key))[1] == key
