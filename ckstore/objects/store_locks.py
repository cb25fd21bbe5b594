"""Lock a run, the tags, the trash or the small files of a store.

On a shared filesystem, a file in ``locks/`` (`ckstore.fs.lock_files`) is locked after the directory, because other
hosts can see only the lock on the file. The timeout applies to each of the two locks. The options of the mount
determine which hosts see the lock on the file. If only one host sees this lock, it is superfluous but harmless.
"""

from __future__ import annotations

from ckstore.errors import InUse
from ckstore.fs import links, locks
from ckstore.fs.lock_files import LockFile, service_failed
from ckstore.objects.layout import Layout

# A run is locked only for the duration of a few system calls. If a process holds the lock for longer, the process or
# its file server hangs.
_DEFAULT_S = 10.0
_STORE = "store"
_TRASH = "trash"
_TAGS = "tags"


def lock_run(layout: Layout, run: str, *, exclusive: bool, timeout_s: float = _DEFAULT_S) -> locks.DirectoryLock:
    """Lock the directory of a run, either shared (for use) or exclusively (against all others)."""
    path = layout.checkpoints / run
    if exclusive:
        # Lock the directory first. This lock coordinates the processes of one host, and it works with forks and signal
        # handlers (docs/adr/0016).
        lock = locks.lock_exclusive(path, timeout_s=timeout_s)
    else:
        lock = locks.lock_shared(path, timeout_s=timeout_s)
    return _followed(layout, lock, f"run-{run}", exclusive=exclusive, timeout_s=timeout_s)


def lock_tags(layout: Layout, *, exclusive: bool) -> locks.DirectoryLock:
    """Lock the tags: shared to set or remove a tag, exclusively to compare a tag and then change it."""
    if exclusive:
        lock = locks.lock_exclusive(layout.refs, timeout_s=_DEFAULT_S)
    else:
        lock = locks.lock_shared(layout.refs, timeout_s=_DEFAULT_S)
    return _followed(layout, lock, _TAGS, exclusive=exclusive, timeout_s=_DEFAULT_S)


def try_trash(layout: Layout) -> locks.DirectoryLock | None:
    """Lock the trash against other collectors without waiting, or return None if another collector has the lock."""
    return _tried(layout, locks.try_exclusive(layout.trash), _TRASH)


def lock_small_files(layout: Layout, *, timeout_s: float) -> locks.DirectoryLock:
    """Exclude all processes that change settings, pins or annotations, or that write the catalog of this host."""
    lock = locks.lock_exclusive(layout.root, timeout_s=timeout_s)
    return _followed(layout, lock, _STORE, exclusive=True, timeout_s=timeout_s)


def make_locked(layout: Layout, name: str, data: bytes) -> locks.DirectoryLock:
    """Create a file in ``locks/``, locked until this process ends. Raise `FileExistsError` if it exists."""
    links.make_directory(layout.locks)
    # Also lock the directory, as for all lock files. A forked child closes the lock of the directory and, with it, the
    # lock of the file. So the child does not keep the lock after its parent has ended.
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
        if service_failed(error):  # the lock service failed; otherwise, another process has the lock
            raise
        return None


def _followed(
    layout: Layout, lock: locks.DirectoryLock, name: str, *, exclusive: bool, timeout_s: float
) -> locks.DirectoryLock:
    # On a local filesystem, the file is not needed, and would cost two calls and an fsync.
    if layout.view.sees_locks:
        return lock
    try:
        # An old or copied store may lack this directory.
        links.make_directory(layout.locks)
        lock.file = LockFile.take(layout.locks / name, exclusive=exclusive, timeout_s=timeout_s)
    except BaseException:
        lock.release()
        raise
    return lock
