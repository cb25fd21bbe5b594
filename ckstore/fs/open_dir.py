"""Directories of a store that remain open, for callers that need many places in them (`ckstore.fs.store_path`)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Self, TypeVar

from ckstore.fs.dirfd_stat import close_quietly, open_below, open_directory
from ckstore.fs.store_path import CLOSED, StorePath

_OPEN_AT_ONCE = 32
"""Number of descriptors that are opened and closed together, which is faster."""

_T = TypeVar("_T")


class OpenDir:
    """A directory of a store that remains open, for callers that need many places in it; a context manager."""

    __slots__ = ("_st_dev", "_where", "fd")

    def __init__(self, where: StorePath) -> None:
        self.fd = CLOSED
        self._where = where
        try:
            self.fd = open_directory(where)
            self._st_dev = os.fstat(self.fd).st_dev
        except BaseException:  # its traceback has this object, and would keep the directory open
            self.close()
            raise

    @property
    def inside(self) -> StorePath:
        """The open directory as a place."""
        return StorePath(str(self._where), (), self)

    def having(self, directory: str, names: Iterable[str]) -> frozenset[str]:
        """Return which of these names a subdirectory has. Empty if it is missing or this user may not access it."""
        # For those who ask it of thousands: one directory is opened for each, and no place is made.
        try:
            # O_PATH needs no right to read the directory, as following a path does not.
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
        """Return for each of these subdirectories the status of `name` in it, and which of `others` it has."""
        # None: there is no `name`. Left out: no directory, on another filesystem, or closed to this user. A thousand
        # take 2 ms: each is opened, and no more is asked; each of the other names takes half a millisecond more.
        found: dict[str, tuple[os.stat_result | None, frozenset[str]]] = {}
        waiting, done = [*directories], 0
        opened: list[int] = []
        open_one = partial(os.open, dir_fd=self.fd)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            while done < len(waiting):
                # Opened and closed by C loops, not one by one: a thousand directories take 2 ms so.
                part = waiting[done : done + _OPEN_AT_ONCE]
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # the part ends before it
                    opened.extend(map(open_one, part, repeat(flags)))  # no handler of a signal gets in between
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
                # The first directory that could not be opened ended the part: it is left out, and the rest is tried
                # again.
                done += min(len(opened) + 1, len(part))
                _close_all(opened)
        finally:
            _close_all(opened)
        return found

    def close(self) -> None:
        """Close the directory. Repeated calls do nothing."""
        with suppress(OSError):  # nothing was written through it
            fd, self.fd = self.fd, CLOSED
            if fd >= 0:  # no handler of a signal runs between these lines
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
    """Yield each item with its place, through its open directory. A directory serves consecutive places in it."""
    # For those who go to thousands of places: a directory is opened once for all of its that come one after another. A
    # place counts until the next is asked for. Where there is no such directory, the place is given as it was.
    # For a `for` statement: after an error the traceback of a comprehension would keep the directory open.
    parent: tuple[object, ...] | None = None
    held: OpenDir | None = None
    folder: StorePath | None = None
    try:
        for thing, place in places:
            # Only neighbours share a directory: one descriptor is open, however many places there are.
            if parent != (place.top, place.parts[:-1], place.holder) or not place.parts:
                if held is not None:
                    held.close()
                held, folder, parent = None, None, (place.top, place.parts[:-1], place.holder)
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # a call there says so
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
