"""Open and stat paths inside or outside a store by directory descriptor. Source: rule N (`ckstore.fs.store_path`)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ckstore.fs.owner import give_to_owner_of
from ckstore.fs.store_path import AnyPath, NotInStore, StorePath

MOST_LEVELS = 16
"""Depth to which `walk` descends."""


class at:  # noqa: N801 - a with statement reads as a function
    """Yield ``(dir_fd, name)`` of a place for a ``with`` block: `name` in the directory `dir_fd`."""

    # Of a path elsewhere, and of the root of a store, it is the path as it is. An error of the system in the block gets
    # the whole path as its file name. Raises NotInStore: on the way something is not a directory of this store.

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
            # The root belongs to the user who named it, and may be reached by a symlink of theirs.
            return (None, where.top) if where.holder is None else (_held(where), ".")
        self._name = where.parts[-1]
        # Directly in a held directory: no descriptor to open, which spares a save two calls for each blob.
        if where.holder is not None and len(where.parts) == 1:
            return _held(where), self._name
        self._fd = _reach(where)
        return self._fd, self._name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        # The kernel was given one name only; a user needs the whole path in the message.
        if isinstance(error, OSError) and error.filename == self._name and error.filename2 is None and self._name:
            error.filename = str(self._where)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:  # no handler of a signal runs between these lines
            close_quietly(fd)

    # After a call that failed, a handler of a signal runs when `__exit__` is entered, and may raise there.
    __del__ = _close


def open_at(where: AnyPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Open a place in a store, or any other path, closed on exec. Signal handlers cannot lose the descriptor."""
    # A file that is made in a directory given as a descriptor, as in a store, belongs to that directory's owner.
    if not isinstance(where, StorePath) and (dir_fd is None or not flags & os.O_CREAT):
        return open_descriptor(where, flags, mode, dir_fd=dir_fd)
    fd = -1
    try:
        with at(where, dir_fd) as (parent, name):
            fd = open_descriptor(name, flags, mode, dir_fd=parent)
            if flags & os.O_CREAT and parent is not None:
                # Before others see the file used: a file that root makes here would else stay root's, in a store of
                # another user.
                give_to_owner_of(parent, fd)
    except BaseException:
        if fd >= 0:
            close_quietly(fd)
        raise
    return fd


def open_descriptor(path: str | os.PathLike[str], flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Return a descriptor like `os.open`. It is closed on exec and not lost if a signal handler raises."""
    # CPython runs signal handlers between two steps of Python code: after a call of C code has returned, when a Python
    # function is entered, and when a loop goes back. One of these places is between ``os.open(…)`` and the assignment
    # of what it returned: a handler that raises there leaves a descriptor, and its lock, that nothing closes until the
    # process ends. Here C code alone moves the number from `os.open` into a list that exists before. The caller assigns
    # what this returns to a name or an attribute, and a ``try`` that closes it follows at once. It may be passed to
    # `os.close`, and to nothing else: a Python function or class that is called is such a place. Raises BaseException:
    # what a signal handler raised; nothing is left open.
    opened: list[int] = []
    try:
        # C code alone runs between the system call and the list, so no handler of a signal can lose the number.
        opened.extend(map(partial(os.open, dir_fd=dir_fd), (path,), (flags | os.O_CLOEXEC,), (mode,)))
    except BaseException:
        for fd in opened:
            with suppress(OSError):  # the first error is the news
                os.close(fd)
        raise
    return opened[0]


def open_closed_streams() -> None:
    """Open stdin, stdout and stderr on the null device if the process was started without them (``>&-``)."""
    # Else a file of the store gets that number, and what C code prints is written into it; SQLite does the same.
    fd = open_descriptor(os.devnull, os.O_RDWR)
    while fd <= 2:  # stdin, stdout and stderr
        os.set_inheritable(fd, True)
        fd = open_descriptor(os.devnull, os.O_RDWR)
    os.close(fd)


def open_directory(where: AnyPath, *, dir_fd: int | None = None, flags: int = 0) -> int:
    """Return a descriptor of a directory, to list it, to lock it, or to make its names durable."""
    # `flags` count for a path elsewhere: in a store no symlink is followed anyway.
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
        raise OSError(errno.EBADF, "it was closed", where.top)
    return fd


def _reach(where: StorePath) -> int:
    """Return a new descriptor of the directory of a place."""
    # It has ``O_PATH``, as those on the way: that needs no right to read them, as following a path does not.
    if where.holder is None:
        # No O_NOFOLLOW for the root: its path is the user's own.
        fd = open_descriptor(where.top, os.O_PATH | os.O_DIRECTORY)
        owned = True
    else:
        fd, owned = _held(where), False
    try:
        st_dev = _st_dev_of(where, fd)
        for level in range(1, len(where.parts)):
            # Assigned at once: were the new descriptor only in a local of the call, an exception here would leak the
            # old one.
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
    """Return the filesystem that all directories of a place must be on, or None for any, as for another program."""
    return None if where.is_foreign else os.fstat(fd).st_dev


def _step(fd: int, where: StorePath, level: int, st_dev: int | None, *, how: int) -> int:
    """Open the directory at one level of the path to a place, in the open directory above it."""
    try:
        return open_below(fd, where.parts[level - 1], how, st_dev)
    except OSError as error:
        error.filename = f"{where.top}/{'/'.join(where.parts[:level])}"
        raise


def open_below(fd: int, name: str, how: int, st_dev: int | None) -> int:
    """Return a descriptor of a directory in the open one `fd`. It must be on `st_dev`, if one is given."""
    try:
        below = open_descriptor(name, how | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        # Linux says ENOTDIR of a symlink here; ELOOP is the error that POSIX names.
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise NotInStore(errno.ENOTDIR, _kind(fd, name), name) from error
        raise
    try:
        # A filesystem mounted inside the store would break hardlinks and fsyncs, and may be another user's (FUSE).
        if st_dev is None or os.fstat(below).st_dev == st_dev:
            return below
    except BaseException:
        close_quietly(below)
        raise
    close_quietly(below)
    raise NotInStore(errno.ENOTDIR, "is on another filesystem than the rest of the store", name)


def _kind(fd: int, name: str) -> str:
    """Return the kind of file that has the name of a directory, for a message."""
    try:
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except OSError:  # it changed again
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
    """Return the results of `find` for several names in one directory, which is opened once, without missing names."""
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
        # access asks the kernel, which knows ACLs and read-only mounts; mode bits do not tell those.
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
    """Yield every file below a directory, except directories, with its status. Vanished and closed ones are skipped."""
    # Nothing recurses, and one directory is open at a time. A store has at most five levels; directories deeper than
    # `MOST_LEVELS` are not looked into, and noted in `too_deep`.
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
            # Anyone who may write to a store could nest directories without end.
            elif len(place.parts) - len(top.parts) < MOST_LEVELS:
                waiting.append(place)
            elif too_deep is not None:
                too_deep.append(place)


def statuses(folder: AnyPath) -> list[tuple[str, os.stat_result]]:
    """Return the names in a directory with their status, without vanished ones; empty if the directory is missing."""
    listed: list[tuple[str, os.stat_result]] = []
    try:
        fd = open_directory(folder)
    except (FileNotFoundError, NotADirectoryError):
        return listed
    try:  # no context managers: a plan of gc asks this of 20,000 small directories
        with os.scandir(fd) as found:
            for entry in found:
                try:
                    listed.append((entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:  # renamed meanwhile
                    continue
    finally:
        os.close(fd)
    return listed


def listed(folder: AnyPath) -> list[tuple[str, int, bool]]:
    """Return each name in a directory with its inode number and whether it is a directory; empty if it is missing."""
    with suppress(FileNotFoundError, NotADirectoryError), entries(folder) as found:
        return [(entry.name, entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in found]
    return []


def symlink_texts(folder: StorePath, names: Sequence[str] | None = None) -> dict[str, str | None]:
    """Return the target of each symlink in a directory, or of those with `names`; None for another kind of file."""
    # Names that start with a dot are temporary, and left out.
    found: dict[str, str | None] = {}
    fd = open_directory(folder)
    try:
        for name in os.listdir(fd) if names is None else names:
            if name.startswith("."):
                continue
            try:
                found[name] = os.readlink(name, dir_fd=fd)
            except FileNotFoundError:  # it was taken away meanwhile
                continue
            except OSError as error:
                # EINVAL: the entry is no symlink. Any other error must not make a tag look damaged, which stops all
                # deletions.
                if error.errno != errno.EINVAL:
                    error.filename = f"{folder}/{name}"
                    raise
                found[name] = None
    finally:
        close_quietly(fd)
    return found


class FreeSpace(NamedTuple):
    """The free space of a filesystem."""

    block_bytes: int  # what a file takes is a multiple of this
    total_bytes: int
    free_bytes: int  # what this user may take
    unused_bytes: int  # what is free, with what is kept for root
    free_inodes: int | None  # what this user may take; None: the filesystem counts no inodes
    total_inodes: int  # 0 if it counts none

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
        # btrfs and many network filesystems report 0 inodes in all, which means no limit and not a full disk.
        free_inodes=found.f_favail if found.f_files else None,
        total_inodes=found.f_files,
    )
