"""Places in a store, reached one directory at a time: rule N of the design (docs/protocol.md, "Places in a store").

A user who may write to a store can replace any directory in it by a symlink, or by a mounted filesystem, at any moment.
So no path with more than one component below the root of the store is given to the kernel: `at` opens one directory
after another, each with ``O_NOFOLLOW``, checks that it is on the filesystem of the store, and gives the descriptor of
the last one with the name in it. A place is a value of its own, `Inside`, which no function of ``os`` takes.

The same is done by Go's ``os.Root`` and by cap-std's ``Dir``.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ckstore.errors import BadInput
from ckstore.fs.owner import give_to_owner_of

if TYPE_CHECKING:
    from types import TracebackType

CLOSED = -2
"""In the place of a descriptor that was closed: at -1 `os.listdir` and `os.scandir` list the working directory."""


class NotInStore(NotADirectoryError):
    """The name of a directory of the store leads to something else: a symlink, a file, or of another filesystem.

    ``filename`` is its path, ``strerror`` says what it is instead.
    """


class OpenDirectory(Protocol):
    """Has a directory open.

    Attributes:
        fd: Its descriptor; below 0 when it was closed.
    """

    fd: int


class Inside:
    """A place in a store: a directory, and the names that lead from it to the place. Immutable.

    Deliberately no ``os.PathLike``: a plain function of ``os`` would follow symlinks on the way.

    Attributes:
        top: Path of the directory: the root of the store, or one that `holder` has open.
        parts: The names, without slashes.
        holder: Has the directory open; None: `top` is opened for each use.
        is_foreign: The directory is no store, but a folder of another program: filesystems may be mounted in it.
    """

    __slots__ = ("holder", "is_foreign", "parts", "top")

    def __init__(
        self, top: str, parts: tuple[str, ...] = (), holder: OpenDirectory | None = None, *, is_foreign: bool = False
    ) -> None:
        self.top = top
        self.parts = parts
        self.holder = holder
        self.is_foreign = is_foreign

    def __truediv__(self, name: str) -> Inside:
        """Return the place `name` in this directory.

        Raises:
            BadInput: `name` is more than one name, or none.
        """
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            msg = f"{name!r} is not a valid name in {self}"
            raise BadInput(msg, hint="give one file name, without a slash, and not . or ..")
        return Inside(self.top, (*self.parts, name), self.holder, is_foreign=self.is_foreign)

    @property
    def name(self) -> str:
        """The last name; that of the root is that of its path."""
        return self.parts[-1] if self.parts else os.path.basename(self.top)

    @property
    def parent(self) -> Inside:
        """The directory of this place.

        Raises:
            BadInput: It is the root, whose parent is outside the store.
        """
        if not self.parts:
            msg = f"{self} is the root of a store or a directory held open, so its parent is not in the store"
            raise BadInput(msg)
        return Inside(self.top, self.parts[:-1], self.holder, is_foreign=self.is_foreign)

    @property
    def path(self) -> Path:
        """The path, for reports and for what is not in the store's hands, such as statvfs of its root."""
        return Path(str(self))

    @property
    def inner(self) -> str:
        """The names, with slashes: for messages about a place in the store."""
        return "/".join(self.parts)

    def __str__(self) -> str:
        return f"{self.top}/{'/'.join(self.parts)}" if self.parts else self.top

    def __repr__(self) -> str:
        return f"Inside({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inside) and str(self) == str(other)

    def __lt__(self, other: Inside) -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(str(self))


Where: TypeAlias = Inside | Path | str
"""A place in a store, or a path elsewhere."""


class at:  # noqa: N801 - a with statement reads as a function
    """Give ``(dir_fd, name)`` of a place for the time of a ``with`` block: `name` in the directory `dir_fd`.

    Of a path elsewhere, and of the root of a store, it is the path as it is. An error of the system in the block gets
    the whole path as its file name.

    Raises:
        NotInStore: On the way something is not a directory of this store.
        FileNotFoundError: On the way something is missing.
        OSError: The system refused.
    """

    __slots__ = ("_dir_fd", "_fd", "_name", "_where")

    def __init__(self, where: Where, dir_fd: int | None = None) -> None:
        self._where = where
        self._dir_fd = dir_fd
        self._fd = -1
        self._name = ""

    def __enter__(self) -> tuple[int | None, str | Path]:
        where = self._where
        if not isinstance(where, Inside):
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


def open_at(where: Where, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Open a place, or a path elsewhere; closed on exec, and by no exception of a signal handler lost.

    A file that is made in a directory given as a descriptor, as in a store, belongs to that directory's owner.
    """
    if not isinstance(where, Inside) and (dir_fd is None or not flags & os.O_CREAT):
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
    """Return a descriptor as `os.open` does, which no exception of a signal handler loses; it is closed on exec.

    CPython runs signal handlers between two steps of Python code: after a call of C code has returned, when a Python
    function is entered, and when a loop goes back. One of these places is between ``os.open(…)`` and the assignment of
    what it returned: a handler that raises there leaves a descriptor, and its lock, that nothing closes until the
    process ends. Here C code alone moves the number from `os.open` into a list that exists before.

    The caller assigns what this returns to a name or an attribute, and a ``try`` that closes it follows at once. It may
    be passed to `os.close`, and to nothing else: a Python function or class that is called is such a place.

    Raises:
        BaseException: What a signal handler raised; nothing is left open.
    """
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


def open_directory(where: Where, *, dir_fd: int | None = None, flags: int = 0) -> int:
    """Return a descriptor of a directory: to list it, to lock it, to make its names durable.

    `flags` count for a path elsewhere: in a store no symlink is followed anyway.
    """
    if not isinstance(where, Inside) or not where.parts:
        return open_at(where, os.O_RDONLY | os.O_DIRECTORY | flags, dir_fd=dir_fd)
    fd = -1
    try:
        with at(where) as (parent, _):
            if parent is not None:
                fd = _step(parent, where, len(where.parts), _device_of(where, parent), how=os.O_RDONLY)
    except BaseException:
        if fd >= 0:
            close_quietly(fd)
        raise
    return fd


def _held(where: Inside) -> int:
    fd = -1 if where.holder is None else where.holder.fd
    if fd < 0:
        raise OSError(errno.EBADF, "it was closed", where.top)
    return fd


def _reach(where: Inside) -> int:
    """Return a new descriptor of the directory of a place.

    It has ``O_PATH``, as those on the way: that needs no right to read them, as following a path does not.
    """
    if where.holder is None:
        # No O_NOFOLLOW for the root: its path is the user's own.
        fd = open_descriptor(where.top, os.O_PATH | os.O_DIRECTORY)
        owned = True
    else:
        fd, owned = _held(where), False
    try:
        device = _device_of(where, fd)
        for level in range(1, len(where.parts)):
            # Assigned at once: were the new descriptor only in a local of the call, an exception here would leak the
            # old one.
            above, fd = fd, _step(fd, where, level, device, how=os.O_PATH)
            if owned:
                close_quietly(above)
            owned = True
    except BaseException:
        if owned:
            close_quietly(fd)
        raise
    return fd


def _device_of(where: Inside, fd: int) -> int | None:
    """Return the filesystem that the way to a place stays on; None: any, as in a folder of another program."""
    return None if where.is_foreign else os.fstat(fd).st_dev


def _step(fd: int, where: Inside, level: int, device: int | None, *, how: int) -> int:
    """Open the directory of that level on the way to a place, in the one above it, which is open.

    Raises:
        NotInStore: It is not a directory, or not on this device.
        OSError: It cannot be opened; the file name is its path.
    """
    try:
        return open_below(fd, where.parts[level - 1], how, device)
    except OSError as error:
        error.filename = f"{where.top}/{'/'.join(where.parts[:level])}"
        raise


def open_below(fd: int, name: str, how: int, device: int | None) -> int:
    """Return a descriptor of a directory in the open one `fd`, if it is on this device; None: on any.

    Raises:
        NotInStore: It is not a directory, or on another filesystem.
    """
    try:
        below = open_descriptor(name, how | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:
        # Linux says ENOTDIR of a symlink here; ELOOP is the error that POSIX names.
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise NotInStore(errno.ENOTDIR, _kind(fd, name), name) from error
        raise
    try:
        # A filesystem mounted inside the store would break hardlinks and fsyncs, and may be another user's (FUSE).
        if device is None or os.fstat(below).st_dev == device:
            return below
    except BaseException:
        close_quietly(below)
        raise
    close_quietly(below)
    raise NotInStore(errno.ENOTDIR, "is on another filesystem than the rest of the store", name)


def _kind(fd: int, name: str) -> str:
    """Return what has the name of a directory, for a message."""
    try:
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except OSError:  # it changed again
        return "is not a directory"
    return "is a symlink" if stat.S_ISLNK(mode) else "is not a directory"


def close_quietly(fd: int) -> None:
    """Close a descriptor through which nothing was written: an error says nothing, and Linux closes it either way."""
    try:
        os.close(fd)
    except OSError:
        return
