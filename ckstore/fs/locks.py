"""Lock directories (laws L1 and L2 of docs/protocol.md).

To use a directory, a process holds a shared `flock` on it. To remove a directory, a process holds an exclusive `flock`
on it, which it requests without waiting. After every lock, the path must still refer to the locked inode, because a
directory that was renamed away and created again has another inode. The lock follows a rename, needs only read
permission, and ends with its holder. A forked child closes its copies of the descriptors, because a lock lasts as long
as any descriptor of its open file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import warnings
import weakref
from _thread import get_ident
from collections.abc import Iterator
from typing import Self

from ckstore.errors import InUse
from ckstore.fs.dirfd_stat import CLOSED, AnyPath, OpenDir, StorePath, at, close_quietly, open_directory
from ckstore.fs.lock_files import BUSY, LockFile
from ckstore.fs.lock_holders import named_holders
from ckstore.interpreter import end_overdue_pauses

# Locks are polled, because a blocking flock has no deadline. A save holds the lock of a run only for some system calls.
_POLL_FIRST_S = 0.001
# Twenty polls per second cost almost nothing, and a waiting save loses at most the time of one pause.
_POLL_MOST_S = 0.05
# A try fails only if the directory was replaced between open and lock.
_LOCK_TRIES = 100

# The references are weak, so that Python can collect a forgotten lock. The lock is then released with a warning.
_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """A context manager for a `flock` on a directory, which is held until `release`."""

    __slots__ = ("__weakref__", "_inode", "_kept", "_owner", "_thread", "_where", "fd", "file")

    def __init__(self, where: AnyPath) -> None:
        self.fd = CLOSED
        self._where = where
        self.file: LockFile | None = None  # a lock file that excludes other hosts, if the store is shared
        self._owner = os.getpid()
        self._thread = get_ident()
        self._inode: tuple[int, int] | None = None
        self._kept: list[OpenDir] = []
        _held.add(self)

    def release(self) -> None:
        """Release the lock. Repeated calls do nothing."""
        if self.fd < 0:
            return
        # The lock file was locked last, so it is released first. Until the end, the lock on the directory keeps other
        # processes of this host out.
        if self.file is not None:
            self.file.close()
        # Errors are ignored, because nothing is written through this descriptor, and closing its last copy releases the
        # lock.
        with contextlib.suppress(OSError):
            try:
                # The lock is released explicitly, so that a forked child's copy does not keep it. A child must not
                # release it.
                if os.getpid() == self._owner:
                    fcntl.flock(self.fd, fcntl.LOCK_UN)
            finally:
                fd, self.fd = self.fd, CLOSED
                if fd >= 0:  # no signal handler runs between these lines
                    os.close(fd)
        while self._kept:
            self._kept.pop().close()
        _held.discard(self)

    def check(self) -> None:
        """Check that the lock on the lock file was not lost. Without a lock file, do nothing."""
        if self.file is not None:
            self.file.check()

    def is_of_this_thread(self, inode: tuple[int, int]) -> bool:
        """Whether this thread locked the directory with this device and inode number, and still holds the lock."""
        if self._thread != get_ident() or self.fd < 0:
            return False
        try:
            mine = os.fstat(self.fd)
        except OSError:  # another thread has closed it at this moment
            return False
        return (mine.st_dev, mine.st_ino) == inode

    @contextlib.contextmanager
    def let_go(self, *, timeout_s: float = 10.0) -> Iterator[None]:
        """Unlock the directory during the block. Then lock it for use again, waiting like `lock_shared`.

        Raises:
            FileNotFoundError: The directory was removed or replaced.
            InUse: Another process has it locked now.
        """
        # If the block raises, for example because of Ctrl-C, the directory remains unlocked. A wait or an `InUse` would
        # hide the error.
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        yield
        _wait_for(self.fd, fcntl.LOCK_SH, time.monotonic() + timeout_s, self._where)
        if not self.names(self._where):
            raise FileNotFoundError(errno.ENOENT, "dropped or replaced meanwhile", self.path)

    @property
    def path(self) -> str:
        """The path under which the directory was locked."""
        return str(self._where)

    @property
    def inside(self) -> StorePath:
        """The locked directory as a place, which remains valid if the directory is renamed."""
        return StorePath(self.path, (), self)

    def keep(self, directory: StorePath) -> OpenDir:
        """Open a directory until the lock is released, for callers that need many of its names."""
        kept = OpenDir(directory)
        self._kept.append(kept)
        return kept

    def names(self, path: AnyPath) -> bool:
        """Whether `path` still refers to the locked directory."""
        # The inode of the locked directory is read only once. A filesystem in user space may look up an open directory
        # by its last known path. If the reply to a rename was lost, that path may belong to another directory.
        try:
            with at(path) as (parent, name):
                current = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if self._inode is None:
            mine = os.fstat(self.fd)
            self._inode = mine.st_dev, mine.st_ino
        # A directory that was renamed away and created again has another inode and another lock.
        return (current.st_dev, current.st_ino) == self._inode

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            warnings.warn("a checkpoint or a save was left open; it is closed now", ResourceWarning, stacklevel=2)
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.release()


# A lock lasts as long as any copy of its descriptor, so a forked data loader would keep a checkpoint locked for hours.
os.register_at_fork(after_in_child=_forget_in_child)


def lock_shared(path: AnyPath, *, timeout_s: float = 10.0) -> DirectoryLock:
    """Lock the directory `path` for use. Wait at most `timeout_s` while another process deletes it."""
    return _lock(path, fcntl.LOCK_SH, timeout_s)


def lock_exclusive(path: AnyPath, *, timeout_s: float) -> DirectoryLock:
    """Lock the directory `path` against all others. Wait at most `timeout_s` seconds."""
    return _lock(path, fcntl.LOCK_EX, timeout_s)


def try_exclusive(path: AnyPath) -> DirectoryLock | None:
    """Lock the directory `path` for removal without waiting, or return None if it is in use, missing or forbidden."""
    try:
        return _lock(path, fcntl.LOCK_EX, 0.0)
    except (InUse, FileNotFoundError, PermissionError):
        return None


def open_unlocked(path: AnyPath) -> DirectoryLock:
    """Open the directory `path` as a `DirectoryLock` that holds no lock.

    Contents that the caller read are valid if `names(path)` is still true afterwards, because a process that deletes a
    directory renames it first.
    """
    lock = DirectoryLock(path)
    try:
        lock.fd = open_directory(path, flags=os.O_NOFOLLOW)
    except BaseException:
        lock.release()
        raise
    return lock


def is_locked(path: AnyPath) -> bool:
    """Whether a process has the directory `path` locked now. A plan of gc calls this thousands of times."""
    fd = open_directory(path, flags=os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A child that is forked at this moment gets a copy of the descriptor, which must not keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in BUSY:
            raise
        return True
    finally:
        close_quietly(fd)
    return False


def _lock(path: AnyPath, kind: int, timeout_s: float) -> DirectoryLock:
    deadline = time.monotonic() + timeout_s
    for _ in range(_LOCK_TRIES):
        lock = DirectoryLock(path)
        try:
            # Each lock has its own open file. The flocks of one process on two open files exclude each other, and so
            # two threads exclude each other.
            lock.fd = open_directory(path, flags=os.O_NOFOLLOW)
            _wait_for(lock.fd, kind, deadline, path)
            # gc may have moved the directory to trash between open and lock. In this case, the lock protects nothing.
            if lock.names(path):
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()
    raise InUse(f"{path} was replaced {_LOCK_TRIES} times while it was being locked")


def _wait_for(fd: int, kind: int, deadline: float, path: AnyPath) -> None:
    pause_s = _POLL_FIRST_S
    while True:
        try:
            # A blocking flock would wait without a deadline for a holder that was stopped.
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in BUSY:
                raise
        else:
            return
        # This check is made only after a refusal, so that it costs nothing in the common case.
        _refuse_own(fd, path)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            # The holders are named only after a wait. A caller that does not wait may be refused for a thousand
            # directories, and reading /proc for each of them would take long.
            who = named_holders(os.fstat(fd)) if pause_s > _POLL_FIRST_S else ""
            msg = f"{path} is locked by another process{who}"
            raise InUse(msg, hint="wait until it is done; the lock ends with its holder")
        end_overdue_pauses(min(pause_s, left_s))
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _POLL_MOST_S)


def _refuse_own(fd: int, path: AnyPath) -> None:
    """Raise `InUse` if this thread itself holds the lock, for example because a signal handler interrupted a call."""
    # Otherwise, the thread would wait for its own lock until the deadline.
    status = os.fstat(fd)
    inode = (status.st_dev, status.st_ino)
    if any(lock.fd != fd and lock.is_of_this_thread(inode) for lock in list(_held)):
        msg = f"{path} is locked by another call in this same thread"
        raise InUse(msg, hint="in a signal handler only set a flag, and use the store after the call returns")
