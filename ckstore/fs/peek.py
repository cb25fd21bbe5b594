"""Look at places in a store, or elsewhere, without opening files: rule N of the design (`ckstore.fs.inside`)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ckstore.fs.inside import Inside, Where, at, open_directory

MOST_LEVELS = 16
"""How deep `walk` goes."""


class FreeSpace(NamedTuple):
    """A filesystem's room.

    Attributes:
        block_bytes: What a file takes is a multiple of this.
        total_bytes: The size of the filesystem.
        free_bytes: What this user may take.
        unused_bytes: What is free, with what is kept for root.
        free_inodes: What this user may take; None: the filesystem counts no inodes.
        total_inodes: 0 if it counts none.
    """

    block_bytes: int
    total_bytes: int
    free_bytes: int
    unused_bytes: int
    free_inodes: int | None
    total_inodes: int

    def has_inodes(self, count: int) -> bool:
        """Whether so many inodes are free."""
        return self.free_inodes is None or self.free_inodes >= count


def status(where: Where, *, dir_fd: int | None = None) -> os.stat_result:
    """Return the status of what is there; a symlink is not followed.

    Raises:
        FileNotFoundError: There is nothing.
    """
    with at(where, dir_fd) as (parent, name):
        return os.stat(name, dir_fd=parent, follow_symlinks=False)


def find(where: Where, *, dir_fd: int | None = None) -> os.stat_result | None:
    """As `status`; None if there is nothing, or no directory in which it could be."""
    try:
        return status(where, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(where: Where, *, dir_fd: int | None = None) -> bool:
    """Whether there is anything of that name, a symlink that points to nothing, too.

    Raises:
        NotADirectoryError: What should hold it is not a directory.
    """
    try:
        status(where, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def is_directory(where: Where) -> bool:
    """Whether there is a directory; a symlink to one does not count."""
    found = find(where)
    return found is not None and stat.S_ISDIR(found.st_mode)


def may_write(where: Where) -> bool:
    """Whether this user may make names in a directory."""
    with at(where) as (parent, name):
        # access asks the kernel, which knows ACLs and read-only mounts; mode bits do not tell those.
        return os.access(name, os.W_OK, dir_fd=parent, follow_symlinks=False)


def names(where: Where) -> list[str]:
    """Return the names in a directory, in no order.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such directory.
    """
    fd = open_directory(where)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


@contextmanager
def entries(where: Where) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Give what is in a directory, in no order; an entry can be asked for its status inside the block only."""
    fd = open_directory(where)
    try:
        with os.scandir(fd) as found:
            yield found
    finally:
        os.close(fd)


def walk(top: Inside, too_deep: list[Inside] | None = None) -> Iterator[tuple[Inside, os.stat_result]]:
    """Yield all but the directories below a directory, with its status; what vanishes meanwhile is left out.

    Nothing recurses, and one directory is open at a time. A store has at most five levels; it makes nothing deeper than
    `MOST_LEVELS`.

    Args:
        top: The directory.
        too_deep: Gets the directories that are not looked into for that reason.

    A directory that is closed to this user is left out.
    """
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


def statuses(folder: Where) -> list[tuple[str, os.stat_result]]:
    """Return the names in a directory with their status, without those that vanish meanwhile; nothing if it is gone."""
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


def symlink_text(where: Where) -> str:
    """Return what a symlink holds."""
    with at(where) as (parent, name):
        return os.readlink(name, dir_fd=parent)


def is_mounted_read_only(path: str | os.PathLike[str]) -> bool:
    """Whether the filesystem of `path` takes no writes, not even root's."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def free_space(path: str | os.PathLike[str]) -> FreeSpace:
    """Return what is free on the filesystem of `path`: the root of a store, or a place outside stores."""
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
