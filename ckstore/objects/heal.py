"""Put a good copy of a blob in the place of a damaged one, in every checkpoint that names it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckstore.errors import InUse
from ckstore.fs import files, links, locks
from ckstore.objects import marks
from ckstore.objects.layout import BLOBS, Layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WAIT_S = 2.0


def relink_everywhere(layout: Layout, digest: str, good: Path, temporary: Callable[[], Path]) -> int:
    """Make every published checkpoint that has the blob `digest` name the inode of `good`; return how many changed.

    The directories are looked at, not the catalog, so that none is forgotten. Each name changes by one rename, so a
    reader sees the old inode or the new one; marks that say the blob is damaged say so no more. `temporary` gives
    fresh names in a directory of the caller, on the same filesystem.

    Raises:
        OSError: A name could not be changed; those before it were.
    """
    inode = os.stat(good, follow_symlinks=False).st_ino
    changed = 0
    for run, step, _ in layout.published():
        path = layout.checkpoint(run, step)
        name = path / BLOBS / digest
        try:
            if os.stat(name, follow_symlinks=False).st_ino == inode:
                continue
            with locks.lock_shared(path, timeout_s=_WAIT_S) as lock:
                _replace(name, good, temporary())
                files.sync_directory(name.parent)
                marks.forget_blob(lock, digest)
        except FileNotFoundError:  # it does not use the blob, or is gone
            continue
        except InUse:  # it is being taken apart and needs nothing any more
            continue
        changed += 1
    return changed


def _replace(name: Path, good: Path, temporary: Path) -> None:
    try:
        links.link(good, temporary)
    except OSError as error:
        if error.errno not in links.CANNOT_LINK:
            raise
        files.create_blob(temporary, memoryview(files.read_file(good, most_bytes=os.stat(good).st_size)))
    links.rename(temporary, name)
    if os.path.lexists(temporary):
        links.unlink(temporary)
