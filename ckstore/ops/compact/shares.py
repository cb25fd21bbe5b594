"""How much of each blob a checkpoint needs: an old pack lives on because of a few small tensors that never change.

Such a pack is encoded once, by the checkpoint that needs most of it, and then in every directory that has it. So it
does not stay plain for the sake of a part of it. Other files live on after their checkpoints are gone, since others
are decoded with them: those are the orphans.
"""

from __future__ import annotations

from collections import defaultdict
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


class Orphans:
    """Blobs that are in no manifest that was noted, and on the path of one that is."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._users: dict[str, set[str]] = defaultdict(set)

    def note(self, manifest: Manifest) -> None:
        """Note what a checkpoint has, and what it is decoded with."""
        self._own.update(blob.digest for blob in manifest.blobs)
        if manifest.encoding is None:
            return
        sizes = dict(manifest.encoding.files)
        for blob in manifest.blobs:
            for digest in manifest.encoding.path(blob.digest)[1:]:
                self._users[digest].add(blob.digest)
                self._sizes[digest] = sizes[manifest.encoding.file_of(digest)]

    def gone_bytes(self, manifest: Manifest) -> int:
        """Return the sizes of the files that a checkpoint is decoded with and that are of no checkpoint."""
        if manifest.encoding is None:
            return 0
        needed = {digest for blob in manifest.blobs for digest in manifest.encoding.path(blob.digest)[1:]}
        return sum(self._sizes[digest] for digest in needed - self._own)

    def share(self, digest: str) -> float:
        """Return which part of the file of an orphan one of its users would be saved for; 0: it is not one."""
        return 0 if digest in self._own else self._sizes[digest] / len(self._users[digest])
