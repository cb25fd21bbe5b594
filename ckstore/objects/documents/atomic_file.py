"""Small files that may change (settings, pins, annotations). One process at a time replaces a whole file, durably."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ckstore.errors import CkstoreError
from ckstore.fs import files, links, locks
from ckstore.objects import store_locks
from ckstore.objects.layout import Layout

_TIMEOUT_S = 10.0


def changing(layout: Layout) -> locks.DirectoryLock:
    """Lock out all other processes that change such a file, from reading its old content to writing the new one."""
    # It is the flock of those who write the catalog, on the store's directory: the holder must not use the catalog.
    return store_locks.lock_small_files(layout, timeout_s=_TIMEOUT_S)


def replace_file(layout: Layout, lock: locks.DirectoryLock, dir_fd: int, name: str, data: bytes) -> None:
    """Durably set the content of `name` in an open directory. A reader sees the old or the new content."""
    # With `InUse` the lock was lost, and nothing was changed; after an `OSError` it has its old content or, if only the
    # directory could not be made durable, perhaps the new one.
    # The caller holds `lock`, that of `changing`, so what is at the temporary name is of a process that died. That name
    # is one for all files of a directory: the next to write there removes it, whatever it writes (each pin has a new
    # name). Where other hosts may be at work it is one of this start of this machine: they do not see the lock, and
    # must not take the file for a dead one's.
    from ckstore.fs.host import machine  # listing needs this module only to read

    # Other hosts do not see the lock, so the name has the id of this start of this machine.
    fresh = ".new" if layout.view.sees_locks else f".new-{machine.boot_id()[:8]}"
    replace_by(fresh, dir_fd, name, data, check=lock.check)


def replace_by(fresh: str, dir_fd: int, name: str, data: bytes, *, check: Callable[[], None] = lambda: None) -> None:
    """Replace a file like `replace_file`, with the unique temporary name `fresh`. Call `check` before the rename."""
    # Under the lock no living process has that name: a file there is of one that died.
    with contextlib.suppress(FileNotFoundError):
        links.unlink(fresh, dir_fd=dir_fd)
    try:
        # fsync before the rename (law D1): else a power cut could leave the name with an empty file, and the old
        # content lost.
        files.create_file(fresh, data, mode=files.mode_in(dir_fd), dir_fd=dir_fd)
        # As late as possible: after a server restart another host may have the lock (docs/adr/0016).
        check()
        links.rename(fresh, name, dir_fd=dir_fd)
    except (CkstoreError, OSError):
        with contextlib.suppress(OSError):  # the first error says what is wrong; the next writer removes it
            links.unlink(fresh, dir_fd=dir_fd)
        raise
    # Only now is the change durable and may be acknowledged (law N2).
    files.sync_open_directory(dir_fd)
