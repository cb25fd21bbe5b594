"""A directory that is built next to its destination and published there as a whole, by one rename.

Everything below it is reached by descriptors, without following a symlink. So no process that changes names meanwhile
can redirect a write. The builder holds a shared lock on the directory. When the same user builds for the same
destination again, the leftovers of a killed builder are removed. Names of other users in the parent are not touched,
and the builder draws names until one is free.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ckstore.errors import BadInput, CkstoreError, InUse
from ckstore.fs import files, links, locks

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Closed to others until it is whole: the modes that the caller wants are set right before the rename.
_BUILD_MODE = 0o700
# A name is lost only to another builder that sweeps it, or to one who guesses 48 random bits.
_CREATE_TRIES = 100
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class NewTree:
    """A tree that is being built; a context manager that removes it unless it was published."""

    def __init__(self, destination: Path, path: Path, lock: locks.DirectoryLock, mode: int) -> None:
        self.destination = destination
        self.path = path  # where it is being built, beside the destination
        self._lock = lock
        self._modes: dict[str, int] = {"": mode}
        self._published = False

    @classmethod
    def beside(cls, destination: Path, *, one_file: bool = False, others: Iterable[str] = ()) -> NewTree:
        """Begin a tree for `destination`, which may be an empty directory. Its parent must exist."""
        # With `one_file`, `publish_file` comes at the end, and nothing may be there, nor at the names `others` in its
        # directory. Raises BadInput: there is something else, or no parent, or one that this user may not write to, or
        # what is made there does not stay.
        destination = Path(os.path.abspath(destination))
        mode = 0o777 & ~_umask()  # which may fail, so before anything is made
        try:
            _check_free(destination, or_empty=not one_file)
            for name in others:
                _check_free(destination.parent / name, or_empty=False)
            remove_dead(destination)
            path, lock = _begin(destination)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _no_parent(destination, error) from error
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise
            msg = f"{destination.name} cannot be made in {destination.parent}: {os.strerror(error.errno)}"
            raise BadInput(msg, hint="choose a destination in a directory that you may write to") from error
        return cls(destination, path, lock, mode)

    def make_directory(self, path: str, mode: int | None = None) -> None:
        """Create the directory `path`, relative to the tree. Its parents must exist. It gets `mode` at the end."""
        # None: those permissions that the umask leaves of 0o777.
        with self._parent(path) as (parent, name):
            os.mkdir(name, _BUILD_MODE, dir_fd=parent)
        self._modes[path] = self._modes[""] if mode is None else mode

    @contextmanager
    def create_file(self, path: str, mode: int | None = None) -> Iterator[int]:
        """Create the file `path` and yield a descriptor to write and read it. It is durable at the end of the block."""
        # Its directory was made before. `mode`: None: those permissions that the umask leaves of 0o666.
        # By the descriptor of the parent: a user who swaps a directory meanwhile cannot lead the write elsewhere.
        with self._parent(path) as (parent, name), files.opened(name, _CREATE, dir_fd=parent) as fd:
            yield fd
            # Before the fsync, so that bytes and mode become durable together.
            os.fchmod(fd, 0o666 & ~_umask() if mode is None else mode)
            os.fsync(fd)

    def link_file(self, path: str, existing: str, *, dir_fd: int) -> None:
        """Add the name `path` in the tree to the file `existing`, which is relative to the directory `dir_fd`."""
        with self._parent(path) as (parent, name):
            os.link(existing, name, src_dir_fd=dir_fd, dst_dir_fd=parent, follow_symlinks=False)

    def make_symlink(self, path: str, target: str) -> None:
        """Create the symlink `path` with this target. It is never followed."""
        with self._parent(path) as (parent, name):
            os.symlink(target, name, dir_fd=parent)

    def set_mtime(self, path: str, mtime_ns: int) -> None:
        """Set the modification time of a file or directory, after the last name was created in it."""
        with self._parent(path) as (parent, name):
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def publish(self) -> None:
        """Set the modes of the directories, make everything durable, and rename the tree to its destination."""
        # Raises BadInput: there is something at the destination now. Raises CkstoreError: all of it is there, and not
        # known to be durable.
        # The innermost first: a parent made durable earlier would name a directory whose own names are not.
        for path in sorted(self._modes, key=lambda path: path.count("/") if path else -1, reverse=True):
            with self._directory(path) as fd:
                os.fchmod(fd, self._modes[path])
                os.fsync(fd)
        try:
            # One rename over nothing or over an empty directory: at the destination is all of it or nothing (law N1).
            links.rename(self.path, self.destination)
        except OSError as error:
            if error.errno in (*links.ALREADY_THERE, errno.ENOTDIR):
                _check_free(self.destination)
            raise
        self._published = True
        self._make_durable()

    def publish_file(self, name: str, *, beside: Iterable[str] = ()) -> None:
        """Rename one durable file of the tree to the destination, and remove the tree."""
        # `beside`: files of the tree that then get their own names in its directory, in this order.
        # Raises BadInput: there is something at the destination now, or its filesystem has no hardlinks. Raises
        # CkstoreError: all of it is there, and not known to be durable.
        try:
            # A link, not a rename: rename would overwrite a file that came to the destination meanwhile.
            os.link(name, self.destination, src_dir_fd=self._lock.fd, follow_symlinks=False)
        except FileExistsError as error:
            msg = f"{self.destination} exists, and ckstore overwrites nothing"
            raise BadInput(msg, hint="choose a destination that does not exist yet") from error
        except OSError as error:
            if error.errno not in links.CANNOT_LINK:
                raise
            msg = f"the filesystem of {self.destination} has no hardlinks, by which a file appears whole or not at all"
            raise BadInput(msg, hint="export to another filesystem, and copy the file from there") from error
        for other in beside:
            self._publish_beside(other)
        self._make_durable()
        with suppress(OSError):  # the next builder removes what is left
            _remove(self.path, self._lock)
        self._published = True

    def _publish_beside(self, name: str) -> None:
        path = self.destination.parent / name
        try:
            os.link(name, path, src_dir_fd=self._lock.fd, follow_symlinks=False)
        except OSError as error:
            # Not as it is: a full disk would be reported as "nothing was left behind".
            reason = os.strerror(error.errno or 0)
            msg = f"{self.destination} is complete, but {path} cannot be created: {reason}"
            raise CkstoreError(msg, hint="remove it and write it again") from error

    def _make_durable(self) -> None:
        try:
            # The rename is in memory until its parent is synced (law N2).
            files.sync_name(self.destination)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            msg = f"{self.destination} is complete, but may not survive a power cut: {reason}"
            raise CkstoreError(msg, hint="remove it and write it again once the disk works") from error

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        parent, _, name = path.rpartition("/")
        with self._directory(parent) as fd:
            yield fd, name

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        with ExitStack() as opened:
            fd = self._lock.fd
            for name in filter(None, path.split("/")):
                fd = opened.enter_context(files.opened(name, _DIRECTORY, dir_fd=fd))
            yield fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._published and self._lock.fd >= 0:  # else this is a forked child, and its parent goes on
                _remove(self.path, self._lock)
        except OSError:
            if error is None:
                raise  # else the first error is the news; the next builder removes what is left
        finally:
            self._lock.release()


def _begin(destination: Path) -> tuple[Path, locks.DirectoryLock]:
    """Create the build directory and lock it, before another builder mistakes it for that of a dead builder."""
    for _ in range(_CREATE_TRIES):
        path = destination.parent / f"{_prefix(destination)}{secrets.token_hex(6)}"
        try:
            os.mkdir(path, _BUILD_MODE)
        except FileExistsError:
            continue
        try:
            # Locked right after mkdir; if a sweep was faster the lock fails or is on another inode, and a new name is
            # drawn.
            lock = locks.lock_shared(path)
        except OSError as error:  # another builder was faster, or another user put something else there
            if error.errno not in _REPLACED:
                raise
            continue
        try:
            # In a sticky /tmp another user can make a directory of a guessed name: never build in one of theirs.
            if _is_ours(lock):
                return path, lock
        except BaseException:
            lock.release()
            raise
        lock.release()
    msg = f"{_CREATE_TRIES} directories beside {destination} were removed as soon as they were made, or existed already"
    raise BadInput(msg, hint="another program is working there: choose another destination")


def _is_ours(lock: locks.DirectoryLock) -> bool:
    return os.fstat(lock.fd).st_uid == os.geteuid()


def _prefix(destination: Path) -> str:
    """Return the prefix of the names of trees for `destination`, which is short for a `destination` of any length."""
    return f".{os.fsdecode(os.fsencode(destination.name)[:100])}.ckstore-"


def _no_parent(destination: Path, error: OSError) -> BadInput:
    """Return the error for a missing parent of the destination."""
    parent = destination.parent
    if isinstance(error, NotADirectoryError) or os.path.lexists(parent):
        msg = f"{parent} is not a directory, so {destination.name} cannot be made in it"
        return BadInput(msg, hint="choose a destination in a directory")
    return BadInput(
        f"{parent} does not exist, so {destination.name} cannot be made in it",
        hint=f"make it first: mkdir -p {shlex.quote(str(parent))}",
    )


def _check_free(destination: Path, *, or_empty: bool = True) -> None:
    """Raise unless the destination is free, or an empty directory if `or_empty`."""
    try:
        status = os.stat(destination, follow_symlinks=False)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise _no_parent(destination, error) from error
    if not or_empty:
        msg = f"{destination} exists, and ckstore overwrites nothing"
        raise BadInput(msg, hint="choose a destination that does not exist yet")
    if not stat.S_ISDIR(status.st_mode):
        raise BadInput(f"{destination} exists and is not a directory", hint="choose another destination")
    if os.listdir(destination):
        msg = f"{destination} is not empty, and ckstore overwrites nothing"
        raise BadInput(msg, hint="choose a destination that does not exist yet")


def remove_dead(destination: Path) -> None:
    """Remove the leftovers of killed builders of this user for the same destination."""
    # A leftover that cannot be removed takes space and is in no one's way: no reason to fail.
    try:
        names = os.listdir(destination.parent)
    except PermissionError:  # a directory where this user may make names and not list them
        return
    for name in names:
        if name.startswith(_prefix(destination)):
            path = destination.parent / name
            # The builder holds a shared lock as long as it lives: the process that gets this one knows that it died.
            with suppress(OSError, InUse), locks.lock_exclusive(path, timeout_s=0.0) as lock:
                if _is_ours(lock):
                    _remove(path, lock)


def remove_published(path: Path) -> None:
    """Remove a published tree. It is renamed first, so that no other process finds a part of it."""
    # If this process dies meanwhile, `remove_dead` of the same path finds the rest.
    hidden = path.parent / f"{_prefix(path)}{secrets.token_hex(6)}"
    links.rename(path, hidden)
    files.sync_name(hidden)
    with locks.lock_exclusive(hidden, timeout_s=0.0) as lock:
        _remove(hidden, lock)


def _remove(path: Path, lock: locks.DirectoryLock) -> None:
    """Remove the locked tree. A directory in it may already have lost its permissions."""
    # If another user put something at `path` meanwhile, only an empty directory is removed. A failure is tried once
    # more: on a shared filesystem one call in the middle may find a stale handle.
    try:
        _empty(lock.fd)
        os.rmdir(path)
    except OSError:
        _empty(lock.fd)
        os.rmdir(path)


def _empty(fd: int) -> None:
    """Remove everything in an open directory of any depth. Deeper directories are moved up first."""
    while names := os.listdir(fd):
        for name in names:
            if not _opened_up(name, fd):
                os.unlink(name, dir_fd=fd)
                continue
            with files.opened(name, _DIRECTORY, dir_fd=fd) as inner:
                for deeper in os.listdir(inner):
                    if _opened_up(deeper, inner):
                        # Up by one level under a random name, so nothing recurses and no path gets longer.
                        os.rename(deeper, secrets.token_hex(8), src_dir_fd=inner, dst_dir_fd=fd)
                    else:
                        os.unlink(deeper, dir_fd=inner)
            os.rmdir(name, dir_fd=fd)


def _opened_up(name: str, dir_fd: int) -> bool:
    """Whether this is a directory. Its owner may list and change it afterwards."""
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return False
    if status.st_mode & _BUILD_MODE != _BUILD_MODE:
        with files.opened(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd) as fd:
            # fchmod refuses an O_PATH descriptor, and the mode may forbid any other open.
            os.chmod(f"/proc/self/fd/{fd}", _BUILD_MODE)  # by a name it might be another one
    return True


def _umask() -> int:
    """Return the umask without changing it, because another thread may create a file meanwhile."""
    with open("/proc/self/status", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)  # a kernel older than 4.7
    os.umask(mask)
    return mask
