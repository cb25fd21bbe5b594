"""Determine how much of each blob a checkpoint needs, and which blobs of deleted checkpoints are still needed.

An old pack may be kept only for a few small tensors that never change. Such a pack is encoded once, together with the
checkpoint that needs the largest part of the pack. The encoded form then replaces the pack in every directory, even for
checkpoints that otherwise remain plain. Some files are kept after their checkpoints are deleted, because they are
needed to decode other checkpoints. The blobs in these files are called orphans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.model.names import CheckpointKey

_OWN = 1 / 4
"""The share of a blob that a checkpoint must need at least, so that the blob counts as the checkpoint's own.

If the checkpoint needs a smaller share, the blob is an old pack. Decoding the few small tensors in an old pack hardly
slows a load."""


def needed_bytes(manifest: Manifest) -> dict[str, int]:
    """Return how many bytes of each blob a checkpoint needs."""
    parts: dict[int, dict[int, int]] = defaultdict(dict)
    for storage in manifest.storages:
        for extent in storage.extents:
            parts[extent.blob][extent.offset] = max(extent.length, parts[extent.blob].get(extent.offset, 0))
    return {blob.digest: min(blob.nbytes, sum(parts[i].values())) for i, blob in enumerate(manifest.blobs)}


def own_blobs(manifest: Manifest) -> Iterator[BlobRecord]:
    """Yield the blobs of which a checkpoint needs at least the share `_OWN`."""
    needed = needed_bytes(manifest)
    for blob in manifest.blobs:
        if needed[blob.digest] >= _OWN * blob.nbytes:
            yield blob


class Owners:
    """The owner of each blob: the checkpoint that needs the most bytes of it, or the first if several need the most."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, CheckpointKey]] = {}

    def note(self, key: CheckpointKey, manifest: Manifest) -> None:
        """Record the blobs that a checkpoint needs."""
        for digest, nbytes in needed_bytes(manifest).items():
            if digest not in self._found or nbytes > self._found[digest][0]:
                self._found[digest] = nbytes, key

    def is_of(self, digest: str, key: CheckpointKey) -> bool:
        """Whether this checkpoint owns a blob, so that the blob is encoded with it."""
        return self._found.get(digest, (0, key))[1] == key


class Orphans:
    """Blobs that no noted manifest lists, but that are direct or indirect bases of listed blobs."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._users: dict[str, set[str]] = defaultdict(set)

    def note(self, manifest: Manifest) -> None:
        """Record the blobs of a checkpoint, and their bases."""
        self._own.update(blob.digest for blob in manifest.blobs)
        if manifest.form.is_plain:
            return
        sizes = dict(manifest.stored)
        for blob in manifest.blobs:
            for digest in manifest.form.path(blob.digest)[1:]:
                self._users[digest].add(blob.digest)
                self._sizes[digest] = sizes[manifest.form.file_of(digest)]

    def gone_bytes(self, manifest: Manifest) -> int:
        """Return the total size in bytes of the files of orphans that a checkpoint needs for decoding."""
        if manifest.form.is_plain:
            return 0
        needed = {digest for blob in manifest.blobs for digest in manifest.form.path(blob.digest)[1:]}
        return sum(self._sizes[digest] for digest in needed - self._own)

    def share(self, digest: str) -> float:
        """Return the size of an orphan's file divided by the number of its users, or 0 if the blob is no orphan."""
        return 0 if digest in self._own else self._sizes[digest] / len(self._users[digest])
