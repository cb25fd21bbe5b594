"""Locks of a run, of the tags, of the trash and of the small files of a store.

On a shared filesystem, other hosts also see them: the lock on the directory is followed by one on a file in ``locks/``
(`ckstore.fs.lock_files`), always in this order. The caller sets the timeout of both. The mount determines which hosts
see the lock on the file. If it is local to one host, nothing is lost.
"""

from __future__ import annotations

from ckstore.errors import InUse
from ckstore.fs import links, locks
from ckstore.fs.lock_files import LockFile, service_failed
from ckstore.objects.layout import Layout

# A run is locked only for the duration of a few system calls. If a process holds the lock for longer, it hangs, or its
# file server does.
_DEFAULT_S = 10.0
_STORE = "store"
_TRASH = "trash"
_TAGS = "tags"


def lock_run(layout: Layout, run: str, *, exclusive: bool, timeout_s: float = _DEFAULT_S) -> locks.DirectoryLock:
    """Lock the directory of a run, either shared (for use) or exclusively (against all others)."""
    path = layout.checkpoints / run
    if exclusive:
        # Lock the directory first: it coordinates the processes of one host, and forks and signal handlers are handled
        # as for any directory lock (docs/adr/0016).
        lock = locks.lock_exclusive(path, timeout_s=timeout_s)
    else:
        lock = locks.lock_shared(path, timeout_s=timeout_s)
    return _followed(layout, lock, f"run-{run}", exclusive=exclusive, timeout_s=timeout_s)


def lock_tags(layout: Layout, *, exclusive: bool) -> locks.DirectoryLock:
    """Lock the tags: shared to set or remove one, exclusively to change one only if it has not been changed."""
    if exclusive:
        lock = locks.lock_exclusive(layout.refs, timeout_s=_DEFAULT_S)
    else:
        lock = locks.lock_shared(layout.refs, timeout_s=_DEFAULT_S)
    return _followed(layout, lock, _TAGS, exclusive=exclusive, timeout_s=_DEFAULT_S)


def try_trash(layout: Layout) -> locks.DirectoryLock | None:
    """Lock the trash against other collectors without waiting, or return None if another one has it."""
    return _tried(layout, locks.try_exclusive(layout.trash), _TRASH)


def lock_small_files(layout: Layout, *, timeout_s: float) -> locks.DirectoryLock:
    """Lock the store against all who change settings, pins and annotations, or write the catalog of this host."""
    lock = locks.lock_exclusive(layout.root, timeout_s=timeout_s)
    return _followed(layout, lock, _STORE, exclusive=True, timeout_s=timeout_s)


def make_locked(layout: Layout, name: str, data: bytes) -> locks.DirectoryLock:
    """Create a file in ``locks/``, locked until this process ends. Raise `FileExistsError` if it exists."""
    links.make_directory(layout.locks)
    # Lock the directory as well, as for all file locks: a forked child closes the directory's lock, and with it the
    # file's, so it does not remain the owner after its parent has ended.
    lock = locks.lock_shared(layout.locks)
    try:
        lock.file = LockFile.make(layout.locks / name, data)
    except BaseException:
        lock.release()
        raise
    return lock


def _tried(layout: Layout, lock: locks.DirectoryLock | None, name: str) -> locks.DirectoryLock | None:
    if lock is None:
        return None
    try:
        return _followed(layout, lock, name, exclusive=True, timeout_s=0.0)
    except InUse as error:
        if service_failed(error):  # no waiting helps
            raise
        return None


def _followed(
    layout: Layout, lock: locks.DirectoryLock, name: str, *, exclusive: bool, timeout_s: float
) -> locks.DirectoryLock:
    # On a local filesystem the file would cost two calls and an fsync, and tell nothing new.
    if layout.view.sees_locks:
        return lock
    try:
        # A store from before this directory existed, or a copied store, does not have it.
        links.make_directory(layout.locks)
        lock.file = LockFile.take(layout.locks / name, exclusive=exclusive, timeout_s=timeout_s)
    except BaseException:
        lock.release()
        raise
    return lock
