"""Replace small files (settings, pins, annotations) durably and atomically, under one lock for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ckstore.errors import CkstoreError
from ckstore.fs import files, links, locks
from ckstore.objects import store_locks
from ckstore.objects.layout import Layout

_TIMEOUT_S = 10.0


def changing(layout: Layout) -> locks.DirectoryLock:
    """Return a lock that excludes all other processes which change such files."""
    # Writers of the catalog also lock the directory of the store, so the holder of this lock must not use the catalog.
    return store_locks.lock_small_files(layout, timeout_s=_TIMEOUT_S)


def replace_file(layout: Layout, lock: locks.DirectoryLock, dir_fd: int, name: str, data: bytes) -> None:
    """Durably set the content of `name` in an open directory. A reader sees the old or the new content.

    The caller must hold `lock`, which `changing` returns.

    Raises:
        InUse: The lock was lost, and nothing was changed.
        OSError: The file has its old content. If the directory could not be made durable, it may have the new content.
    """
    from ckstore.fs.host import machine  # not needed for reading

    # All files of a directory share one temporary name. Under the lock, an existing file with this name is a leftover
    # of a dead process, and is removed. If other hosts may not see the lock, the name contains the boot id of this
    # machine.
    fresh = ".new" if layout.view.sees_locks else f".new-{machine.boot_id()[:8]}"
    replace_by(fresh, dir_fd, name, data, check=lock.check)


def replace_by(fresh: str, dir_fd: int, name: str, data: bytes, *, check: Callable[[], None] = lambda: None) -> None:
    """Replace a file like `replace_file`, with the temporary name `fresh`. `check` is called before the rename."""
    # No other running process uses the temporary name, so an existing file is a leftover of a dead process.
    with contextlib.suppress(FileNotFoundError):
        links.unlink(fresh, dir_fd=dir_fd)
    try:
        # `create_file` calls fsync before the rename (law D1). Otherwise, a power cut could replace the old content by
        # an empty file.
        files.create_file(fresh, data, mode=files.mode_in(dir_fd), dir_fd=dir_fd)
        # Check the lock as late as possible, because another host may have it after a server restart (docs/adr/0016).
        check()
        links.rename(fresh, name, dir_fd=dir_fd)
    except (CkstoreError, OSError):
        with contextlib.suppress(OSError):  # this must not hide the first error; the next writer removes the file
            links.unlink(fresh, dir_fd=dir_fd)
        raise
    # The change is durable, and may be acknowledged, only after this sync (law N2).
    files.sync_open_directory(dir_fd)
