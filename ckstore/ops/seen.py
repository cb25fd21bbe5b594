"""Manifests that this process has read or written, so that retention does not read them again after each save.

Reading one of 20,000 tensors takes half a second. Which file it was is told by its inode and times: a manifest never
changes, and whoever writes into it changes its times.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from ckstore.objects.layout import MANIFEST

if TYPE_CHECKING:
    from ckstore.model.manifest import Manifest

_MOST_BLOBS = 200_000
"""Blobs that all remembered manifests name together at most; about 40 MB."""

Stamp = tuple[int, int, int, int, int]


class ManifestsSeen:
    """What manifests say, without their leaves; may be used from several threads."""

    def __init__(self) -> None:
        self._known: dict[Stamp, tuple[Manifest, str]] = {}
        self._blob_count = 0
        self._mutex = threading.Lock()

    def recall(self, dir_fd: int) -> tuple[Manifest, str] | None:
        """Return the manifest in an open directory and its id, if that very file was seen; else None."""
        with self._mutex:
            return self._known.get(_stamp(dir_fd))

    def remember(self, dir_fd: int, manifest: Manifest, manifest_id: str) -> None:
        """Take note of the manifest in an open directory; the oldest are forgotten when there are too many.

        Raises:
            FileNotFoundError: It is not there any more.
        """
        stamp = _stamp(dir_fd)
        slim = replace(manifest, leaves=(), storages=(), state=None)
        with self._mutex:
            if stamp in self._known:
                return
            self._known[stamp] = (slim, manifest_id)
            self._blob_count += len(slim.blobs)
            while self._blob_count > _MOST_BLOBS:
                oldest, _ = self._known.pop(next(iter(self._known)))
                self._blob_count -= len(oldest.blobs)


def _stamp(dir_fd: int) -> Stamp:
    status = os.stat(MANIFEST, dir_fd=dir_fd, follow_symlinks=False)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
