"""Build a directory next to its destination, and publish the whole directory with one rename.

All files in the directory are accessed through descriptors, without following symlinks. So no process that changes
names during the build can redirect a write. The builder holds a shared lock on the directory. When the same user builds
for the same destination again, the leftovers of a killed builder are removed. Files of other users in the parent remain
unchanged. The builder tries random names until one is free.
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
# Only the owner may access the tree until it is complete. Directories get their final modes just before the rename.
_BUILD_MODE = 0o700
# A try fails only if another builder removes the directory, or if another user guesses 48 random bits.
_CREATE_TRIES = 100
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class NewTree:
    """A context manager for a tree that is being built. It removes the tree unless the tree was published."""

    def __init__(self, destination: Path, path: Path, lock: locks.DirectoryLock, mode: int) -> None:
        self.destination = destination
        self.path = path  # the directory in which the tree is built, next to the destination
        self._lock = lock
        self._modes: dict[str, int] = {"": mode}
        self._published = False

    @classmethod
    def beside(cls, destination: Path, *, one_file: bool = False, others: Iterable[str] = ()) -> NewTree:
        """Begin a tree for `destination`, which may be an empty directory. The parent of `destination` must exist.

        Args:
            destination: The path at which the tree is published.
            one_file: Whether `publish_file` publishes the tree. Then `destination` must not exist.
            others: Names that must not exist in the parent of the destination.

        Raises:
            BadInput: A file already exists, the parent is missing or this user may not write to it, or other processes
                remove each new directory.
        """
        destination = Path(os.path.abspath(destination))
        mode = 0o777 & ~_umask()  # the umask is read first, because reading it may fail
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
        """Create the directory `path`, relative to the tree. The parents of `path` must exist.

        `publish` gives the directory the permissions `mode`, or by default 0o777 without the bits of the umask.
        """
        with self._parent(path) as (parent, name):
            os.mkdir(name, _BUILD_MODE, dir_fd=parent)
        self._modes[path] = self._modes[""] if mode is None else mode

    @contextmanager
    def create_file(self, path: str, mode: int | None = None) -> Iterator[int]:
        """Create the file `path` and yield a descriptor to write and read it.

        The content is durable at the end of the block. The directory of `path` must exist. Without `mode`, the
        permissions are 0o666 without the bits of the umask.
        """
        with self._parent(path) as (parent, name), files.opened(name, _CREATE, dir_fd=parent) as fd:
            yield fd
            # The mode is set before the fsync, so that bytes and mode become durable together.
            os.fchmod(fd, 0o666 & ~_umask() if mode is None else mode)
            os.fsync(fd)

    def link_file(self, path: str, existing: str, *, dir_fd: int) -> None:
        """Add the name `path` in the tree to the file `existing`, which is relative to the directory `dir_fd`."""
        with self._parent(path) as (parent, name):
            os.link(existing, name, src_dir_fd=dir_fd, dst_dir_fd=parent, follow_symlinks=False)

    def make_symlink(self, path: str, target: str) -> None:
        """Create the symlink `path` with this target. The builder never follows it."""
        with self._parent(path) as (parent, name):
            os.symlink(target, name, dir_fd=parent)

    def set_mtime(self, path: str, mtime_ns: int) -> None:
        """Set the modification time of a file, or of a directory after the last name was created in it."""
        with self._parent(path) as (parent, name):
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def publish(self) -> None:
        """Set the modes of the directories, make everything durable, and rename the tree to its destination.

        Raises:
            BadInput: Another file exists at the destination now.
            CkstoreError: The tree was published completely, but is not known to be durable.
        """
        # The innermost directories become durable first, because a directory must not be durable before its contents.
        for path in sorted(self._modes, key=lambda path: path.count("/") if path else -1, reverse=True):
            with self._directory(path) as fd:
                os.fchmod(fd, self._modes[path])
                os.fsync(fd)
        try:
            # One rename publishes the whole tree or nothing (law N1). It replaces at most an empty directory.
            links.rename(self.path, self.destination)
        except OSError as error:
            if error.errno in (*links.ALREADY_THERE, errno.ENOTDIR):
                _check_free(self.destination)
            raise
        self._published = True
        self._make_durable()

    def publish_file(self, name: str, *, beside: Iterable[str] = ()) -> None:
        """Publish one durable file of the tree at the destination, and remove the tree.

        Args:
            name: The name of the file in the tree.
            beside: Files of the tree to link into the parent of the destination afterwards, in this order.

        Raises:
            BadInput: A file exists at the destination now, or the filesystem has no hardlinks.
            CkstoreError: The file was published, but is not known to be durable, or a file of `beside` could not be
                created.
        """
        try:
            # Unlike a link, a rename would overwrite a file that another process created at the destination.
            os.link(name, self.destination, src_dir_fd=self._lock.fd, follow_symlinks=False)
        except FileExistsError as error:
            msg = f"{self.destination} exists, and ckstore overwrites nothing"
            raise BadInput(msg, hint="choose a destination that does not exist yet") from error
        except OSError as error:
            if error.errno not in links.CANNOT_LINK:
                raise
            msg = (
                f"the filesystem of {self.destination} does not support hardlinks, "
                "which are needed to publish a file atomically"
            )
            raise BadInput(msg, hint="export to another filesystem, and copy the file from there") from error
        for other in beside:
            self._publish_beside(other)
        self._make_durable()
        with suppress(OSError):  # the next builder removes the leftovers
            _remove(self.path, self._lock)
        self._published = True

    def _publish_beside(self, name: str) -> None:
        path = self.destination.parent / name
        try:
            os.link(name, path, src_dir_fd=self._lock.fd, follow_symlinks=False)
        except OSError as error:
            # Callers would report the OSError of a full disk with "nothing was left behind", which is wrong here.
            reason = os.strerror(error.errno or 0)
            msg = f"{self.destination} is complete, but {path} cannot be created: {reason}"
            raise CkstoreError(msg, hint="remove it and write it again") from error

    def _make_durable(self) -> None:
        try:
            # The rename is only in memory until the parent is synced (law N2).
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
            if not self._published and self._lock.fd >= 0:  # in a forked child, the lock has no descriptor
                _remove(self.path, self._lock)
        except OSError:
            if error is None:
                raise  # an earlier error is more important, and the next builder removes the leftovers
        finally:
            self._lock.release()


def _begin(destination: Path) -> tuple[Path, locks.DirectoryLock]:
    """Create the build directory and lock it. Return its path and the lock."""
    for _ in range(_CREATE_TRIES):
        path = destination.parent / f"{_prefix(destination)}{secrets.token_hex(6)}"
        try:
            os.mkdir(path, _BUILD_MODE)
        except FileExistsError:
            continue
        try:
            # Until the directory is locked, another builder may mistake it for a leftover and remove it.
            lock = locks.lock_shared(path)
        except OSError as error:  # the directory was removed or replaced by another file
            if error.errno not in _REPLACED:
                raise
            continue
        try:
            # In a sticky /tmp, another user can create a directory with a guessed name, which must not be used.
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
    """Return the prefix of the names of trees for `destination`; it is short even if `destination` has a long name."""
    return f".{os.fsdecode(os.fsencode(destination.name)[:100])}.ckstore-"


def _no_parent(destination: Path, error: OSError) -> BadInput:
    """Return the error for a destination whose parent is missing or is not a directory."""
    parent = destination.parent
    if isinstance(error, NotADirectoryError) or os.path.lexists(parent):
        msg = f"{parent} is not a directory, so {destination.name} cannot be made in it"
        return BadInput(msg, hint="choose a destination in a directory")
    return BadInput(
        f"{parent} does not exist, so {destination.name} cannot be made in it",
        hint=f"make it first: mkdir -p {shlex.quote(str(parent))}",
    )


def _check_free(destination: Path, *, or_empty: bool = True) -> None:
    """Raise `BadInput` if the destination exists. With `or_empty`, an empty directory is allowed."""
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
    # A leftover that cannot be removed only takes space, so errors are ignored.
    try:
        names = os.listdir(destination.parent)
    except PermissionError:  # this user may create names in the directory, but not list them
        return
    for name in names:
        if name.startswith(_prefix(destination)):
            path = destination.parent / name
            # A running builder holds a shared lock. So if this lock is granted, the builder is dead.
            with suppress(OSError, InUse), locks.lock_exclusive(path, timeout_s=0.0) as lock:
                if _is_ours(lock):
                    _remove(path, lock)


def remove_published(path: Path) -> None:
    """Remove a published tree. It is renamed first, so that no other process finds a part of it."""
    # If this process dies before the end, the next `remove_dead` for the same path removes the remaining files.
    hidden = path.parent / f"{_prefix(path)}{secrets.token_hex(6)}"
    links.rename(path, hidden)
    files.sync_name(hidden)
    with locks.lock_exclusive(hidden, timeout_s=0.0) as lock:
        _remove(hidden, lock)


def _remove(path: Path, lock: locks.DirectoryLock) -> None:
    """Remove the locked tree, even if a directory in it already has its final permissions."""
    # The contents are removed through the descriptor. If another user replaced `path`, `rmdir` can only remove an empty
    # directory. After an error, the removal is repeated once, because a call on a shared filesystem may get a stale
    # handle.
    try:
        _empty(lock.fd)
        os.rmdir(path)
    except OSError:
        _empty(lock.fd)
        os.rmdir(path)


def _empty(fd: int) -> None:
    """Remove everything in an open directory of any depth."""
    while names := os.listdir(fd):
        for name in names:
            if not _opened_up(name, fd):
                os.unlink(name, dir_fd=fd)
                continue
            with files.opened(name, _DIRECTORY, dir_fd=fd) as inner:
                for deeper in os.listdir(inner):
                    if _opened_up(deeper, inner):
                        # The directory is moved up one level, so that neither recursion nor long paths are needed.
                        os.rename(deeper, secrets.token_hex(8), src_dir_fd=inner, dst_dir_fd=fd)
                    else:
                        os.unlink(deeper, dir_fd=inner)
            os.rmdir(name, dir_fd=fd)


def _opened_up(name: str, dir_fd: int) -> bool:
    """Whether `name` is a directory. If so, give its owner permission to list and change it."""
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return False
    if status.st_mode & _BUILD_MODE != _BUILD_MODE:
        with files.opened(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd) as fd:
            # fchmod refuses an O_PATH descriptor, and the mode may forbid any other kind of open. chmod does not use
            # the name of the directory, because the name may now belong to another file.
            os.chmod(f"/proc/self/fd/{fd}", _BUILD_MODE)
    return True


def _umask() -> int:
    """Return the umask, if possible without changing it, because other threads may create files at the same time."""
    with open("/proc/self/status", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)  # kernels before 4.7 do not report the umask
    os.umask(mask)
    return mask
