"""The files of checkpoints that are gone: of blobs that no checkpoint has, and others are decoded with."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Manifest


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
