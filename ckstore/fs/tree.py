"""Inspect files outside the store: list directories, read files, and detect changed files.

Folders of other programs may be hostile, and are accessed only through this module. Below the path that the user gave,
every directory and file is opened relative to its parent's descriptor, without following symlinks
(`ckstore.fs.dirfd_stat`). Only regular files are read. `files_below` is an exception: it lists the user's own files by
their paths.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ckstore.errors import CannotStore, StateChanged
from ckstore.fs import files
from ckstore.fs.dirfd_stat import StorePath, at, open_at
from ckstore.model.names import MOST_LEVELS

Kind = Literal["file", "directory", "symlink"]

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symlink",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or symlink, with its status at the time of the listing."""

    path: str  # the relative path under which it is stored, with slashes
    where: StorePath
    kind: Kind
    mode: int  # permission bits
    nbytes: int
    # If one of the following values differs later, the file was changed.
    mtime_ns: int
    ctime_ns: int
    inode: int
    st_dev: int
    target: str = ""  # the target of a symlink

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill `out` with the bytes of the file from `offset`. Raise `StateChanged` if the file was changed."""
        was = (self.inode, self.st_dev, self.nbytes, self.mtime_ns, self.ctime_ns)
        try:
            fd = open_at(self.where, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                # The status is read from the descriptor, because the name may now belong to another file.
                now = os.fstat(fd)
                if was != (now.st_ino, now.st_dev, now.st_size, now.st_mtime_ns, now.st_ctime_ns):
                    raise changed(self.path)
                done = 0
                while done < len(out):
                    count = os.preadv(fd, [out[done:]], offset + done)
                    # Another program truncated the file after its status was read.
                    if count == 0:
                        raise changed(self.path)
                    done += count
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # it was removed or replaced by a symlink
                raise changed(self.path) from error
            raise

    def content(self) -> bytes:
        """Return the bytes of the file. The caller must check the size of the file first."""
        data = bytearray(self.nbytes)
        self.read_into(0, memoryview(data))
        return bytes(data)


def changed(path: str) -> StateChanged:
    """Return the error for a file that another program changed while it was read."""
    msg = f"{path} was changed while it was being read; nothing was published"
    return StateChanged(msg, hint="wait until the program that writes there is done, then commit again")


def foreign(path: str | os.PathLike[str]) -> StorePath:
    """Return the folder of another program at `path`, which the user gave, as a place."""
    return StorePath(os.path.abspath(path), is_foreign=True)


def look_at(where: StorePath, path: str) -> Entry:
    """Return the entry for the file at `where`, which is stored under `path`."""
    with at(where) as (parent, name):
        return _entry(where, path, name, parent)


def _entry(where: StorePath, path: str, name: str | Path, dir_fd: int | None) -> Entry:
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    kind: Kind
    target = ""
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(status.st_mode):
        kind, target = "symlink", os.readlink(name, dir_fd=dir_fd)
    else:
        raise CannotStore(
            path, f"it is {kind_of(status.st_mode)}", hint="remove it, or commit the other files by their names"
        )
    return Entry(
        path=path,
        where=where,
        kind=kind,
        mode=status.st_mode & 0o777,
        nbytes=status.st_size if kind == "file" else 0,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        st_dev=status.st_dev,
        target=target,
    )


def kind_of(mode: int) -> str:
    """Return the kind of file with this mode, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "neither a file nor a directory")


def walk(where: StorePath, path: str = "") -> Iterator[Entry]:
    """Yield all files below the directory `where`, each directory before its contents, sorted by name.

    Raises:
        CannotStore: An entry is not a file, directory or symlink, or directories are nested too deep.
    """
    # A stack is used, because a folder of another program may be nested deeper than Python's recursion limit.
    waiting = _entries_of(where, path)
    while waiting:
        entry = waiting.pop()
        yield entry
        if entry.kind == "directory":
            if entry.path.count("/") >= MOST_LEVELS:
                problem = f"directories there are nested more than {MOST_LEVELS} deep"
                raise CannotStore(entry.path, problem, hint="commit its content separately, or as an archive")
            waiting += _entries_of(entry.where, entry.path)


def _entries_of(where: StorePath, path: str) -> list[Entry]:
    """Return the entries of a directory in reverse order of names."""
    with files.opened_directory(where) as fd:
        # The names are sorted, so that equal folders have equal manifests. The caller takes the last entry first.
        names = sorted(os.listdir(fd), reverse=True)
        return [_entry(where / name, f"{path}/{name}" if path else name, name, fd) for name in names]


def files_below(top: Path) -> Iterator[Path]:
    """Yield all files below a directory, except directories, without following symlinks.

    It skips directories that are unreadable, or whose path is too long for the kernel.
    """
    waiting = [os.fspath(top)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            if error.errno in files.NOT_OF_THE_FILE:
                raise
            continue
        for name, is_directory in sorted(listed):
            if is_directory:
                waiting.append(f"{folder}/{name}")
            else:
                yield Path(folder, name)
