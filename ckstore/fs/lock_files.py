"""Lock regular files, because other hosts see these locks. NFS, Lustre and FUSE lock directories only within one host.

A lock is a `flock`. NFS converts it to a lock on its server (flock(2)). CephFS, and Lustre with ``flock``, pass it to
the server. With ``nolock`` or ``local_lock``, a lock works only within one host, without an error. The file remains
when the lock ends. A process that locks the file exclusively writes a mark into the file. The mark shows later whether
the lock was lost. The reasons are in docs/adr/0016-lock-files.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from contextlib import suppress
from typing import Self

from ckstore.errors import InUse, UnsafePlace
from ckstore.fs import dirfd_stat, files, links
from ckstore.fs.dirfd_stat import StorePath, open_at
from ckstore.interpreter import end_overdue_pauses

# Locks are polled, because a blocking flock has no deadline. The pause grows, to reduce the load on the lock server.
_POLL_FIRST_S = 0.001
_POLL_MOST_S = 0.1
# A try fails only if the file is replaced at the same moment. A hundred failures in a row mean a broken filesystem.
_TRIES = 100
# A lock file is as private or as shared as its folder, since every user who may write to the store may lock it.
_OWNER = 0o600
_OTHERS = 0o666
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MARK_BYTES = 32
_TEMPORARY = ".new-"
BUSY = (errno.EAGAIN, errno.EACCES)
"""Errors of `flock` if another process has the lock. NFS requests the lock from its server, and can report EACCES."""
_NONE_HERE = (errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of `flock` if the mount does not support locks on files, such as Lustre without ``flock``. In this case, only
the directory is locked, within one host."""


class LockFile:
    """A lock on the regular file at `path`, held until `close`."""

    __slots__ = ("_fd", "_kind", "_mark", "_owner", "path")

    def __init__(self, path: StorePath, kind: int) -> None:
        self.path = path
        self._fd = -1
        self._kind = kind
        self._mark = b""
        self._owner = os.getpid()

    @classmethod
    def take(cls, path: StorePath, *, exclusive: bool, timeout_s: float) -> Self:
        """Lock the file, which is created if it is missing. Wait at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        for _ in range(_TRIES):
            lock = cls(path, kind)
            try:
                # The file is open for writing, because NFS grants an exclusive lock only on such a descriptor.
                lock._fd = _opened(path)
                lock._wait(deadline)
                # The name is checked after locking, because a file that was removed and created again has another lock.
                if lock._is_there():
                    lock._begin(exclusive=exclusive)
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()
        raise InUse(f"{path} was replaced {_TRIES} times while it was being locked")

    @classmethod
    def make(cls, path: StorePath, data: bytes) -> Self:
        """Create the file with this content. It is locked before it gets its name, so no process sees it unlocked.

        Raises:
            FileExistsError: The file exists.
            UnsafePlace: Files cannot be locked on this filesystem.
        """
        for _ in range(_TRIES):
            lock, fresh = cls(path, fcntl.LOCK_EX), _temporary_in(path.parent)
            try:
                lock._fd = open_at(fresh, _NEW, _OWNER)
                _share_as_folder(lock._fd, path.parent)
                lock._lock_fresh()
                files.write_all(lock._fd, memoryview(data))
                # Another host may read the file as soon as it has its name, and must not find it empty.
                os.fsync(lock._fd)
                links.link(fresh, path)
            except FileNotFoundError:  # gc mistook the file for a leftover of a dead process
                lock.close()
            except BaseException:
                lock.close()
                raise
            else:
                return lock
            finally:
                with suppress(FileNotFoundError):
                    links.unlink(fresh)
        raise InUse(f"{path} was removed {_TRIES} times while it was being made")

    def _lock_fresh(self) -> None:
        try:
            fcntl.flock(self._fd, self._kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NONE_HERE:
                msg = f"files in {self.path.parent} cannot be locked, so ckstore cannot detect the end of their owners"
                raise UnsafePlace(msg, hint="mount the filesystem with locks (Lustre: -o flock)") from error
            raise _not_lockable(self.path, error) from error

    def _wait(self, deadline: float) -> None:
        pause_s = _POLL_FIRST_S
        while not self._asked():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                msg = f"{self.path} is locked by another process, of this host or another one"
                raise InUse(msg, hint="wait until it is done; the lock ends with its holder")
            end_overdue_pauses(min(pause_s, left_s))
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _POLL_MOST_S)

    def _asked(self) -> bool:
        """Request the lock once. Return whether it is held, or True if the filesystem has no locks."""
        try:
            # If this process has the lock, the request changes nothing. After a server restart, it obtains the lock
            # again.
            fcntl.flock(self._fd, self._kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in BUSY:
                return False
            if error.errno not in _NONE_HERE:
                raise _not_lockable(self.path, error) from error
        return True

    def _begin(self, *, exclusive: bool) -> None:
        if not exclusive:
            self._mark = self._read()
            return
        mark = uuid.uuid4().hex.encode()
        try:
            if os.pwrite(self._fd, mark, 0) == len(mark):
                # Without the fsync, this host could lose the lock and then write its cached mark over that of the next
                # holder.
                os.fsync(self._fd)
                self._mark = mark
                return
        except OSError as error:
            if error.errno not in files.NO_SPACE:
                raise
        # A full disk must not keep a process from freeing space. So this process holds the lock without writing a mark.
        # It still detects whether another holder wrote a mark meanwhile.
        self._mark = self._read()

    def _read(self) -> bytes:
        """Return the mark from a newly opened file, which shows the writes of other hosts."""
        fd = open_at(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return os.pread(fd, _MARK_BYTES, 0)
        finally:
            os.close(fd)

    def _is_there(self) -> bool:
        try:
            fd = open_at(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            current, mine = os.fstat(fd), os.fstat(self._fd)
        finally:
            os.close(fd)
        return (current.st_dev, current.st_ino) == (mine.st_dev, mine.st_ino)

    def check(self) -> None:
        """Check that the lock was held without interruption. Call this before each change that needs the lock."""
        reason = "another process holds it"
        try:
            if self._asked():
                # Another process may have had the lock meanwhile. Only the mark shows this (docs/adr/0016).
                if self._is_there() and self._read() == self._mark:
                    return
                reason = "another process held it meanwhile"
        except (InUse, OSError) as error:
            reason = str(error)
        msg = f"the lock on {self.path} was lost: {reason}, and nothing was changed"
        raise InUse(msg, hint="the file server was restarted, or the file was replaced: try again")

    def close(self) -> None:
        """Release the lock. Repeated calls do nothing, and a forked child releases nothing."""
        if self._fd < 0:
            return
        # Errors are ignored. A lock that cannot be released was lost, or ends with the descriptor. The only data that
        # was written through the descriptor is already durable.
        with suppress(OSError):
            try:
                # A flock belongs to the open file, which a forked child shares. If the child unlocked it, the parent
                # would lose its lock.
                if os.getpid() == self._owner:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            finally:
                fd, self._fd = self._fd, -1
                if fd >= 0:  # no signal handler runs between these lines
                    os.close(fd)

    def __del__(self) -> None:
        self.close()  # a signal handler may have raised before the caller got the lock


def service_failed(error: InUse) -> bool:
    """Whether a lock was refused because its server failed, and not because another process has it."""
    return isinstance(error.__cause__, OSError)


def is_locked(path: StorePath) -> bool:
    """Whether a process has an exclusive lock on the file, as far as this host sees it.

    Raises:
        DamagedBlob: The path is not a regular file. A pipe does not block the call.
    """
    with files.opened_regular(path) as fd:
        try:
            # The test uses a shared lock, so that two testing processes do not mistake each other for the owner.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in BUSY:
                return True
            if error.errno not in _NONE_HERE:
                raise _not_lockable(path, error) from error
    return False


def _not_lockable(path: StorePath, error: OSError) -> InUse:
    msg = f"{path} cannot be locked: {os.strerror(error.errno or 0)}"
    return InUse(msg, hint="check the lock service of this filesystem (on NFS 3, lockd and statd), then try again")


def _opened(path: StorePath) -> int:
    for _ in range(_TRIES):
        try:
            return open_at(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            _make(path)
    raise InUse(f"{path} was removed {_TRIES} times while it was being locked")


def _make(path: StorePath) -> None:
    """Create the file with the permissions that its directory grants, before other processes see it."""
    fresh = _temporary_in(path.parent)
    fd = open_at(fresh, _NEW, _OWNER)
    try:
        _share_as_folder(fd, path.parent)
        with suppress(FileExistsError, FileNotFoundError):  # another process was faster, or gc removed `fresh`
            # The file is linked, because a rename would replace a file that another host has locked.
            links.link(fresh, path)
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):
            links.unlink(fresh)


def _temporary_in(folder: StorePath) -> StorePath:
    return folder / f"{_TEMPORARY}{uuid.uuid4().hex[:12]}"


def _share_as_folder(fd: int, folder: StorePath) -> None:
    # The mode is set before the link. Otherwise, other users could find a file that they may not open to lock it.
    os.fchmod(fd, _OWNER | dirfd_stat.status(folder).st_mode & _OTHERS)


def leftovers(folder: StorePath) -> list[StorePath]:
    """Return the temporary lock files in `folder` of processes that died, or were suspended, while creating them."""
    # No temporary file is a lock in use, because a lock file gets its final name when it is complete. If a temporary
    # file is removed, its process begins again.
    try:
        with dirfd_stat.entries(folder) as entries:
            found = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    # The lock files themselves remain. If one was removed, two hosts could lock two inodes of the same name.
    return [folder / name for name in sorted(found) if name.startswith(_TEMPORARY)]
