"""Open places in a store one directory at a time, and give new files the owner of their directory.

Source: docs/protocol.md, "Places in a store".

A user who may write to a store can replace any directory in it by a symlink or a mounted filesystem at any moment. So
the kernel never gets a path with more than one component below the root of the store. `at` opens one directory after
another with ``O_NOFOLLOW`` and checks that each is on the filesystem of the store. `at` returns the descriptor of the
last directory and the name in it. A place has a separate type, `StorePath`, which no function of ``os`` accepts.

Go's ``os.Root`` and cap-std's ``Dir`` work in the same way.

A file that root creates in a store gets the owner of its directory. Otherwise, a save by root (sudo, a container
without ``--user``) would leave files in a user's private store that this user can neither read nor free. Root changes
the owner of each file immediately after creating it. The alternatives, `seteuid` and `setfsuid`, would prevent reads of
files that only root may read. `seteuid` would also remove the rights of root from every thread of the training.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias, TypeVar

from ckstore.errors import BadInput

CLOSED = -2
"""The value of a closed descriptor. With -1, `os.listdir` and `os.scandir` would list the working directory."""
MOST_LEVELS = 16
"""The number of levels of directories that `walk` lists, including the first one."""
_OPEN_AT_ONCE = 32
"""The number of descriptors that are opened and closed in one batch. Batches are faster than single calls."""

_T = TypeVar("_T")
_MAY_NOT_GIVE = frozenset((errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))
"""Errors which show that root may not change the owner of a file. In a container, root may lack CAP_CHOWN, or the owner
may have no id in the user namespace. An NFS server may treat root as another user."""
# Bit 0 of the capabilities. Source: linux/capability.h.
_CAP_CHOWN = 1 << 0


class NotInStore(NotADirectoryError):
    """A directory of the store is a symlink, a file, or on another filesystem.

    ``filename`` is the path, and ``strerror`` is the reason.
    """


class OpenDirectory(Protocol):
    """An object with an open directory."""

    fd: int  # the descriptor; negative after the directory was closed


class StorePath:
    """An immutable place in a store, given as a directory and the names on the path from that directory."""

    # It is not an ``os.PathLike``, because functions of ``os`` would follow symlinks in the path.

    __slots__ = ("holder", "is_foreign", "parts", "top")

    def __init__(
        self, top: str, parts: tuple[str, ...] = (), holder: OpenDirectory | None = None, *, is_foreign: bool = False
    ) -> None:
        self.top = top  # the path of the directory: the root of the store, or a directory that `holder` has open
        self.parts = parts
        self.holder = holder  # the object that has the directory open; if None, `top` is opened for each use
        # Whether `top` is a folder of another program instead of a store. Other filesystems may be mounted in it.
        self.is_foreign = is_foreign

    def __truediv__(self, name: str) -> StorePath:
        """Return the place `name` in this directory."""
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            msg = f"{name!r} is not a valid name in {self}"
            raise BadInput(msg, hint="give one file name, without a slash, and not . or ..")
        return StorePath(self.top, (*self.parts, name), self.holder, is_foreign=self.is_foreign)

    @property
    def name(self) -> str:
        """The last name of the place, or the last component of `top` if the place has no names."""
        return self.parts[-1] if self.parts else os.path.basename(self.top)

    @property
    def parent(self) -> StorePath:
        """The directory of this place."""
        if not self.parts:
            raise BadInput(f"{self} is the root of a store or a directory held open, so its parent is not in the store")
        return StorePath(self.top, self.parts[:-1], self.holder, is_foreign=self.is_foreign)

    @property
    def path(self) -> Path:
        """The path, for reports and for calls that need a path, such as statvfs of the root."""
        return Path(str(self))

    @property
    def inner(self) -> str:
        """The names joined by slashes, for messages about a place in the store."""
        return "/".join(self.parts)

    def __str__(self) -> str:
        return f"{self.top}/{'/'.join(self.parts)}" if self.parts else self.top

    def __repr__(self) -> str:
        return f"StorePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __lt__(self, other: StorePath) -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(str(self))


AnyPath: TypeAlias = StorePath | Path | str
"""A place in a store, or any other path."""


class at:  # noqa: N801 - it is used like a function, in a with statement
    """Yield ``(dir_fd, name)`` for a ``with`` block: the open directory of a place, and the name in that directory.

    For a path outside a store and for the root of a store, `name` is the unchanged path. For a directory that is
    already open, `name` is ``.``. If the block raises an `OSError` with `name` as its file name, the file name is
    replaced by the whole path.

    Raises:
        NotInStore: A component of the path is not a directory of this store.
    """

    __slots__ = ("_dir_fd", "_fd", "_name", "_where")

    def __init__(self, where: AnyPath, dir_fd: int | None = None) -> None:
        self._where = where
        self._dir_fd = dir_fd
        self._fd = -1
        self._name = ""

    def __enter__(self) -> tuple[int | None, str | Path]:
        where = self._where
        if not isinstance(where, StorePath):
            return self._dir_fd, where
        if not where.parts:
            # The user chose the path of the root, so it may contain symlinks.
            return (None, where.top) if where.holder is None else (_held(where), ".")
        self._name = where.parts[-1]
        # The directory of the place is already open. Using it saves two system calls for each blob of a save.
        if where.holder is not None and len(where.parts) == 1:
            return _held(where), self._name
        self._fd = _reach(where)
        return self._fd, self._name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        # The error of the kernel only contains the last name, but messages need the whole path.
        if isinstance(error, OSError) and error.filename == self._name and error.filename2 is None and self._name:
            error.filename = str(self._where)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:  # no signal handler runs between these lines
            close_quietly(fd)

    # A signal handler may raise when `__exit__` is entered. In this case, this method closes the descriptor.
    __del__ = _close


def open_at(where: AnyPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Return a descriptor of a place in a store, or of any other path.

    The descriptor is closed on exec, and if a signal handler raises in this function. A new file in a store, or in a
    directory that is given as a descriptor, gets the owner of its directory.
    """
    if not isinstance(where, StorePath) and (dir_fd is None or not flags & os.O_CREAT):
        return open_descriptor(where, flags, mode, dir_fd=dir_fd)
    fd = -1
    try:
        with at(where, dir_fd) as (parent, name):
            fd = open_descriptor(name, flags, mode, dir_fd=parent)
            if flags & os.O_CREAT and parent is not None:
                # A file that root creates in the store of another user must not remain owned by root.
                give_to_owner_of(parent, fd)
    except BaseException:
        if fd >= 0:
            close_quietly(fd)
        raise
    return fd


def open_descriptor(path: str | os.PathLike[str], flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Open a file like `os.open`, and return its descriptor.

    The descriptor is closed on exec, and if a signal handler raises in this function. The caller must assign the result
    to a variable or attribute, and the next statement must be a ``try`` that closes it. The caller may pass the result
    directly only to `os.close`, because a signal handler may run when a Python function is entered.
    """
    # CPython runs signal handlers after a call of C code has returned, when a Python function is entered, and when a
    # loop continues. So a handler may raise between ``os.open(…)`` and the assignment of its result. Then the
    # descriptor and its lock would remain until the process ends. Here, only C code moves the number from `os.open`
    # into an existing list.
    opened: list[int] = []
    try:
        opened.extend(map(partial(os.open, dir_fd=dir_fd), (path,), (flags | os.O_CLOEXEC,), (mode,)))
    except BaseException:
        for fd in opened:
            with suppress(OSError):  # the first error is more important
                os.close(fd)
        raise
    return opened[0]


def open_closed_streams() -> None:
    """Open stdin, stdout and stderr on the null device if the process was started without them (``>&-``)."""
    # Otherwise, a file of the store could get the number of one of these streams, and C code could print into the
    # file. SQLite does the same.
    fd = open_descriptor(os.devnull, os.O_RDWR)
    while fd <= 2:  # stdin, stdout and stderr
        os.set_inheritable(fd, True)
        fd = open_descriptor(os.devnull, os.O_RDWR)
    os.close(fd)


def open_directory(where: AnyPath, *, dir_fd: int | None = None, flags: int = 0) -> int:
    """Return a descriptor of a directory, to list it, to lock it, or to make its names durable.

    `flags` are added only for the root and for paths outside stores. In a store, no symlink is followed in any case.
    """
    if not isinstance(where, StorePath) or not where.parts:
        return open_at(where, os.O_RDONLY | os.O_DIRECTORY | flags, dir_fd=dir_fd)
    fd = -1
    try:
        with at(where) as (parent, _):
            if parent is not None:
                fd = _step(parent, where, len(where.parts), _st_dev_of(where, parent), how=os.O_RDONLY)
    except BaseException:
        if fd >= 0:
            close_quietly(fd)
        raise
    return fd


def _held(where: StorePath) -> int:
    fd = -1 if where.holder is None else where.holder.fd
    if fd < 0:
        raise OSError(errno.EBADF, "the directory was closed", where.top)
    return fd


def _reach(where: StorePath) -> int:
    """Return a new descriptor of the directory that contains a place."""
    # O_PATH does not need the right to read a directory.
    if where.holder is None:
        # The user chose the path of the root, so it may be a symlink.
        fd = open_descriptor(where.top, os.O_PATH | os.O_DIRECTORY)
        owned = True
    else:
        fd, owned = _held(where), False
    try:
        st_dev = _st_dev_of(where, fd)
        for level in range(1, len(where.parts)):
            # One statement assigns both, so that an exception leaks neither descriptor.
            above, fd = fd, _step(fd, where, level, st_dev, how=os.O_PATH)
            if owned:
                close_quietly(above)
            owned = True
    except BaseException:
        if owned:
            close_quietly(fd)
        raise
    return fd


def _st_dev_of(where: StorePath, fd: int) -> int | None:
    """Return the filesystem that must contain all directories of a place, or None to allow any in a foreign place."""
    return None if where.is_foreign else os.fstat(fd).st_dev


def _step(fd: int, where: StorePath, level: int, st_dev: int | None, *, how: int) -> int:
    """Open the directory at one level of the path to a place, in the open directory above it."""
    try:
        return open_below(fd, where.parts[level - 1], how, st_dev)
    except OSError as error:
        error.filename = f"{where.top}/{'/'.join(where.parts[:level])}"
        raise


def open_below(fd: int, name: str, how: int, st_dev: int | None) -> int:
    """Return a descriptor of the directory `name` in the open directory `fd`.

    The directory must be on the filesystem `st_dev`. None allows any filesystem.
    """
    try:
        below = open_descriptor(name, how | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        # For a symlink, Linux returns ENOTDIR here, and POSIX specifies ELOOP.
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise NotInStore(errno.ENOTDIR, _kind(fd, name), name) from error
        raise
    try:
        # A filesystem mounted inside the store would break hardlinks and fsyncs. Another user may control it (FUSE).
        if st_dev is None or os.fstat(below).st_dev == st_dev:
            return below
    except BaseException:
        close_quietly(below)
        raise
    close_quietly(below)
    raise NotInStore(errno.ENOTDIR, "is on another filesystem than the rest of the store", name)


def _kind(fd: int, name: str) -> str:
    """Return why `name` cannot be opened as a directory, for a message."""
    try:
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except OSError:  # for example, another process removed it
        return "is not a directory"
    return "is a symlink" if stat.S_ISLNK(mode) else "is not a directory"


def close_quietly(fd: int) -> None:
    """Close a descriptor that was not written to. Errors are ignored, because Linux closes it in any case."""
    try:
        os.close(fd)
    except OSError:
        return


def status(where: AnyPath, *, dir_fd: int | None = None) -> os.stat_result:
    """Return the status of a file. A symlink is not followed."""
    with at(where, dir_fd) as (parent, name):
        return os.stat(name, dir_fd=parent, follow_symlinks=False)


def find(where: AnyPath, *, dir_fd: int | None = None) -> os.stat_result | None:
    """Return the status of a file like `status`, or None if the file or its directory is missing."""
    try:
        return status(where, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None


def found_in(folder: StorePath, names: Sequence[str]) -> dict[str, os.stat_result]:
    """Return the status of several names in one directory, which is opened once. Missing names are omitted."""
    found: dict[str, os.stat_result] = {}
    with suppress(FileNotFoundError, NotADirectoryError), at(folder / names[0]) as (parent, _):
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = os.stat(name, dir_fd=parent, follow_symlinks=False)
    return found


def exists(where: AnyPath, *, dir_fd: int | None = None) -> bool:
    """Whether a file of that name exists. A broken symlink counts."""
    try:
        status(where, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def is_directory(where: AnyPath) -> bool:
    """Whether a directory exists. A symlink to one does not count."""
    found = find(where)
    return found is not None and stat.S_ISDIR(found.st_mode)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return the target of a user's path. Unlike `Path.resolve`, it does not raise if symlinks form a loop."""
    return Path(os.path.realpath(path))


def may_write(where: AnyPath) -> bool:
    """Whether this user may create names in a directory."""
    with at(where) as (parent, name):
        # Unlike the mode bits, `os.access` includes ACLs and read-only mounts.
        return os.access(name, os.W_OK, dir_fd=parent, follow_symlinks=False)


def names(where: AnyPath) -> list[str]:
    """Return the names in a directory, unsorted."""
    fd = open_directory(where)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


@contextmanager
def entries(where: AnyPath) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Yield the entries of a directory, unsorted. An entry can return its status only inside the block."""
    fd = open_directory(where)
    try:
        with os.scandir(fd) as found:
            yield found
    finally:
        os.close(fd)


def walk(top: StorePath, too_deep: list[StorePath] | None = None) -> Iterator[tuple[StorePath, os.stat_result]]:
    """Yield every file below a directory, except directories, with its status.

    It skips vanished files and unreadable directories. It also skips directories that are `MOST_LEVELS` or more levels
    below `top`, and adds them to `too_deep`. A store has at most five levels.
    """
    # One directory is open at a time.
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            listed = statuses(folder)
        except PermissionError:
            continue
        for name, about in listed:
            place = folder / name
            if not stat.S_ISDIR(about.st_mode):
                yield place, about
            # A user who may write to a store could nest directories without limit.
            elif len(place.parts) - len(top.parts) < MOST_LEVELS:
                waiting.append(place)
            elif too_deep is not None:
                too_deep.append(place)


def statuses(folder: AnyPath) -> list[tuple[str, os.stat_result]]:
    """Return the names in a directory with their status. The list is empty if the directory is missing."""
    listed: list[tuple[str, os.stat_result]] = []
    try:
        fd = open_directory(folder)
    except (FileNotFoundError, NotADirectoryError):
        return listed
    try:  # a context manager would be slower, and a plan of gc calls this for 20,000 small directories
        with os.scandir(fd) as found:
            for entry in found:
                try:
                    listed.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:  # the file was renamed or removed
                    continue
    finally:
        os.close(fd)
    return listed


def listed(folder: AnyPath) -> list[tuple[str, int, bool]]:
    """Return ``(name, inode number, is a directory)`` of each entry of a folder. Empty if the folder is missing."""
    with suppress(FileNotFoundError, NotADirectoryError), entries(folder) as found:
        return [(entry.name, entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in found]
    return []


def symlink_texts(folder: StorePath, names: Sequence[str] | None = None) -> dict[str, str | None]:
    """Return the target of each symlink in a directory, or only of `names`.

    A file that is not a symlink has the target None. Names that start with a dot are temporary, and are skipped.
    """
    found: dict[str, str | None] = {}
    fd = open_directory(folder)
    try:
        for name in os.listdir(fd) if names is None else names:
            if name.startswith("."):
                continue
            try:
                found[name] = os.readlink(name, dir_fd=fd)
            except FileNotFoundError:  # another process removed it
                continue
            except OSError as error:
                # EINVAL means that the file is not a symlink. No other error may make a tag appear damaged, because
                # that would stop all deletions.
                if error.errno != errno.EINVAL:
                    error.filename = f"{folder}/{name}"
                    raise
                found[name] = None
    finally:
        close_quietly(fd)
    return found


class FreeSpace(NamedTuple):
    """The free space of a filesystem."""

    block_bytes: int  # the size of a block; a file takes whole blocks
    total_bytes: int
    free_bytes: int  # the space that this user may use
    unused_bytes: int  # the free space, including the space that is reserved for root
    free_inodes: int | None  # the inodes that this user may use; None if the filesystem does not count inodes
    total_inodes: int  # 0 if the filesystem does not count inodes

    def has_inodes(self, count: int) -> bool:
        """Whether at least `count` inodes are free."""
        return self.free_inodes is None or self.free_inodes >= count


def is_mounted_read_only(path: str | os.PathLike[str]) -> bool:
    """Whether the filesystem of `path` is mounted read-only, also for root."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def free_space(path: str | os.PathLike[str]) -> FreeSpace:
    """Return the free space on the filesystem of `path`, which is the root of a store or a path outside stores."""
    found = os.statvfs(path)
    block = found.f_frsize
    return FreeSpace(
        block_bytes=block,
        total_bytes=found.f_blocks * block,
        free_bytes=found.f_bavail * block,
        unused_bytes=found.f_bfree * block,
        # btrfs and many network filesystems report 0 as the total number of inodes. This means that there is no limit.
        free_inodes=found.f_favail if found.f_files else None,
        total_inodes=found.f_files,
    )


def current_user() -> int:
    """Return the effective user id of this process."""
    return os.geteuid()


def may_give() -> bool:
    """Whether this process of root may give files to other users. True if the kernel does not report capabilities."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            rights = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return True
    return bool(int(rights, 16) & _CAP_CHOWN)


def give_to_owner_of(parent_fd: int, fd: int) -> None:
    """As root, give a new open file to the owner and the group of its directory.

    If the system does not allow it, root remains the owner. Checkpoints of other users do not need this file.
    """
    if os.geteuid() != 0:
        return
    owner, made = os.fstat(parent_fd), os.fstat(fd)
    # In a store that root owns, `fchown` is not needed, and would change the ctime of each blob.
    if (owner.st_uid, owner.st_gid) == (made.st_uid, made.st_gid):
        return
    try:
        os.fchown(fd, owner.st_uid, owner.st_gid)
    except OSError as error:
        if error.errno not in _MAY_NOT_GIVE:
            raise


def give_name_to_owner_of(parent_fd: int, name: str) -> None:
    """Change the owner of a symlink like `give_to_owner_of`, because a symlink cannot be opened."""
    if os.geteuid() != 0:
        return
    owner = os.fstat(parent_fd)
    try:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=parent_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _MAY_NOT_GIVE:
            raise


class OpenDir:
    """A context manager that keeps a directory of a store open, for callers that need many places in it."""

    __slots__ = ("_st_dev", "_where", "fd")

    def __init__(self, where: StorePath) -> None:
        self.fd = CLOSED
        self._where = where
        try:
            self.fd = open_directory(where)
            self._st_dev = os.fstat(self.fd).st_dev
        except BaseException:  # the traceback refers to this object, so it would keep the directory open
            self.close()
            raise

    @property
    def inside(self) -> StorePath:
        """The open directory as a place."""
        return StorePath(str(self._where), (), self)

    def having(self, directory: str, names: Iterable[str]) -> frozenset[str]:
        """Return which of these names exist in a subdirectory, or none if it is missing or not accessible."""
        # For thousands of subdirectories, this is faster than creating a place for each name.
        try:
            # O_PATH does not need the right to read the directory.
            below = open_below(self.fd, directory, os.O_PATH, self._st_dev)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return frozenset()
        try:
            return frozenset(name for name in names if _has(below, name))
        except PermissionError:
            return frozenset()
        finally:
            close_quietly(below)

    def look_into(
        self, directories: Iterable[str], name: str, others: Sequence[str] = ()
    ) -> dict[str, tuple[os.stat_result | None, frozenset[str]]]:
        """Return, for each of these subdirectories, the status of the file `name` and which of `others` exist.

        A subdirectory without `name` has the status None, and `others` are not checked. The result omits names that are
        not directories, are on another filesystem, or are not accessible to this user.
        """
        # A thousand directories take 2 ms, and half a millisecond more for each of `others`.
        found: dict[str, tuple[os.stat_result | None, frozenset[str]]] = {}
        waiting, done = [*directories], 0
        opened: list[int] = []
        open_one = partial(os.open, dir_fd=self.fd)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            while done < len(waiting):
                # Loops in C code open and close the directories, which is faster.
                part = waiting[done : done + _OPEN_AT_ONCE]
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # see below
                    opened.extend(map(open_one, part, repeat(flags)))  # no signal handler runs during this call
                for directory, below in zip(part, opened, strict=False):
                    try:
                        status = os.stat(name, dir_fd=below, follow_symlinks=False)
                    except FileNotFoundError:
                        found[directory] = None, frozenset()
                        continue
                    except PermissionError:
                        continue
                    if status.st_dev == self._st_dev:
                        has = frozenset(other for other in others if _has(below, other)) if others else frozenset()
                        found[directory] = status, has
                # If a directory could not be opened, it is skipped, and the next round begins after it.
                done += min(len(opened) + 1, len(part))
                _close_all(opened)
        finally:
            _close_all(opened)
        return found

    def close(self) -> None:
        """Close the directory. Repeated calls do nothing."""
        with suppress(OSError):  # nothing was written through it
            fd, self.fd = self.fd, CLOSED
            if fd >= 0:  # no signal handler runs between these lines
                os.close(fd)

    __del__ = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _has(directory_fd: int, name: str) -> bool:
    """Whether an open directory has this name. `os.access` would report every error as False."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def with_open_parents(places: Iterable[tuple[_T, StorePath]]) -> Iterator[tuple[_T, StorePath]]:
    """Yield each item with its place in an open directory. Consecutive places in one directory share that directory.

    A yielded place is valid until the next place is requested. If the directory of a place cannot be opened, the place
    is yielded unchanged. Use this function in a `for` statement: after an error, the traceback of a comprehension would
    keep the directory open.
    """
    parent: tuple[object, ...] | None = None
    held: OpenDir | None = None
    folder: StorePath | None = None
    try:
        for thing, place in places:
            # Only one directory is open at a time.
            if parent != (place.top, place.parts[:-1], place.holder) or not place.parts:
                if held is not None:
                    held.close()
                held, folder, parent = None, None, (place.top, place.parts[:-1], place.holder)
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # the caller's use will fail
                    held = OpenDir(place.parent) if place.parts else None
                folder = None if held is None else held.inside
            yield thing, place if folder is None else folder / place.name
    finally:
        if held is not None:
            held.close()


def _close_all(opened: list[int]) -> None:
    """Close descriptors and remove them from the list, in C code only, so that each is closed exactly once."""
    if opened:
        deque(map(os.close, map(opened.pop, [-1] * len(opened))), 0)
