"""A directory that is built beside its destination and appears there by one rename: all of it or nothing.

Everything below it is reached by descriptors and without following a symlink, so that nobody who changes names
meanwhile can lead a write elsewhere. Its builder holds a shared lock on it; what a killed one left is removed by the
next who builds for the same destination.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ckstore.errors import BadInput
from ckstore.fs import files, links, locks

if TYPE_CHECKING:
    from types import TracebackType

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_BUILD_MODE = 0o700
_CREATE_TRIES = 100


class NewTree:
    """A tree in the making; a context manager that removes it unless it was published.

    Attributes:
        destination: Where it will appear.
        path: Where it is being built, beside the destination.
    """

    def __init__(self, destination: Path, path: Path, lock: locks.DirectoryLock) -> None:
        self.destination = destination
        self.path = path
        self._lock = lock
        self._modes: dict[str, int] = {"": 0o777 & ~_umask()}
        self._published = False

    @classmethod
    def beside(cls, destination: Path) -> NewTree:
        """Begin a tree for `destination`, which may be an empty directory; its parent must be there.

        Raises:
            BadInput: There is something else, or no parent, or what is made there does not stay.
            OSError: No directory can be made there.
        """
        destination = Path(os.path.abspath(destination))
        _check_free(destination)
        try:
            _remove_dead(destination)
            path, lock = _begin(destination)
        except (FileNotFoundError, NotADirectoryError) as error:
            msg = f"{destination.parent} is no directory, so that {destination.name} cannot be made in it"
            raise BadInput(msg, hint=f"make it first: mkdir -p {destination.parent}") from error
        return cls(destination, path, lock)

    def make_directory(self, path: str, mode: int) -> None:
        """Make the directory `path`, relative to the tree, whose parents were made before; it gets `mode` in the end.

        Raises:
            FileExistsError: There is such a name.
        """
        with self._parent(path) as (parent, name):
            os.mkdir(name, _BUILD_MODE, dir_fd=parent)
        self._modes[path] = mode

    @contextmanager
    def create_file(self, path: str, mode: int | None = None) -> Iterator[int]:
        """Create the file `path` and give a descriptor to write and read it; at the end of the block it is durable.

        Args:
            path: Relative to the tree; its directory was made before.
            mode: Permission bits; None: those that the umask leaves of 0o666.

        Raises:
            FileExistsError: There is such a name.
        """
        with self._parent(path) as (parent, name), files.opened(name, _CREATE, dir_fd=parent) as fd:
            yield fd
            os.fchmod(fd, 0o666 & ~_umask() if mode is None else mode)
            os.fsync(fd)

    def link_file(self, path: str, existing: str, *, dir_fd: int) -> None:
        """Give the file `existing`, relative to the directory `dir_fd`, the further name `path` in the tree.

        Raises:
            FileExistsError: There is such a name.
            OSError: With an errno of `links.CANNOT_LINK`: this pair can have no link.
        """
        with self._parent(path) as (parent, name):
            os.link(existing, name, src_dir_fd=dir_fd, dst_dir_fd=parent, follow_symlinks=False)

    def make_symlink(self, path: str, target: str) -> None:
        """Make the symlink `path` with this content; it is never followed here.

        Raises:
            FileExistsError: There is such a name.
        """
        with self._parent(path) as (parent, name):
            os.symlink(target, name, dir_fd=parent)

    def set_mtime(self, path: str, mtime_ns: int) -> None:
        """Set the modification time of a file or directory, after the last name was made in it."""
        with self._parent(path) as (parent, name):
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

    def publish(self) -> None:
        """Give the directories their modes, make everything durable, and rename the tree to its destination.

        Raises:
            BadInput: There is something at the destination now.
            OSError: It is not known to be durable; nothing or all of it is there.
        """
        for path in sorted(self._modes, key=lambda path: path.count("/") if path else -1, reverse=True):
            with self._directory(path) as fd:
                os.fchmod(fd, self._modes[path])
                os.fsync(fd)
        try:
            links.rename(self.path, self.destination)
        except OSError as error:
            if error.errno in (*links.ALREADY_THERE, errno.ENOTDIR):
                _check_free(self.destination)
            raise
        self._published = True
        files.sync_directory(self.destination.parent)

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
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                fd = opened.enter_context(files.opened(name, flags, dir_fd=fd))
            yield fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._published:
                _remove(self.path)
        finally:
            self._lock.release()


def _begin(destination: Path) -> tuple[Path, locks.DirectoryLock]:
    """Make the directory to build in and lock it, before another builder takes it for a dead one's."""
    for _ in range(_CREATE_TRIES):
        path = destination.parent / f"{_prefix(destination)}{secrets.token_hex(6)}"
        os.mkdir(path, _BUILD_MODE)
        try:
            return path, locks.lock_shared(path)
        except FileNotFoundError:  # it was faster; if the parent is gone, mkdir says so
            continue
    msg = f"{_CREATE_TRIES} directories beside {destination} were removed as soon as they were made"
    raise BadInput(msg, hint="another program empties that place: name a destination elsewhere")


def _prefix(destination: Path) -> str:
    """Return how the names begin under which trees for `destination` are built: short, whatever its own length."""
    return f".{os.fsdecode(os.fsencode(destination.name)[:100])}.ckstore-"


def _check_free(destination: Path) -> None:
    """Raise unless there is nothing, or an empty directory."""
    try:
        status = os.stat(destination, follow_symlinks=False)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise BadInput(f"{destination.parent} is no directory") from error
    if not stat.S_ISDIR(status.st_mode):
        raise BadInput(f"{destination} exists and is no directory", hint="name another destination")
    if os.listdir(destination):
        msg = f"{destination} is not empty: nothing in it is overwritten"
        raise BadInput(msg, hint="name a destination that does not exist yet")


def _remove_dead(destination: Path) -> None:
    """Remove what killed builders of the same destination left."""
    for name in os.listdir(destination.parent):
        if name.startswith(_prefix(destination)):
            path = destination.parent / name
            lock = locks.try_exclusive(path) if path.is_dir() and not path.is_symlink() else None
            if lock is not None:
                with lock:
                    _remove(path)


def _remove(path: Path) -> None:
    """Remove a tree, in which a directory may have lost its permissions already."""
    for folder, names, _ in os.walk(path):
        for name in names:
            if not os.path.islink(inner := os.path.join(folder, name)):
                os.chmod(inner, _BUILD_MODE)
    shutil.rmtree(path)


def _umask() -> int:
    """Return the umask without changing it: another thread may make a file meanwhile."""
    with open("/proc/self/status", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)  # a kernel older than 4.7
    os.umask(mask)
    return mask
