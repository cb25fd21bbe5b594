"""Places in a store, opened one directory at a time: rule N of the design (docs/protocol.md, "Places in a store").

A user who may write to a store can replace any directory in it by a symlink or a mounted filesystem at any moment. So
the kernel never gets a path with more than one component below the root of the store. `at` opens one directory after
another with ``O_NOFOLLOW``, checks that it is on the filesystem of the store, and returns the descriptor of the last
one and the name in it. A place is a separate type, `StorePath`, which no function of ``os`` accepts.

Go's ``os.Root`` and cap-std's ``Dir`` work in the same way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, TypeAlias

from ckstore.errors import BadInput

CLOSED = -2
"""The value of a closed descriptor. With -1, `os.listdir` and `os.scandir` would list the working directory."""


class NotInStore(NotADirectoryError):
    """A directory of the store is a symlink, a file, or on another filesystem."""

    # ``filename`` is its path, ``strerror`` says what it is instead.


class OpenDirectory(Protocol):
    """An object with an open directory."""

    fd: int  # its descriptor; negative after it was closed


class StorePath:
    """A place in a store: a directory, and the names from it to the place. Immutable."""

    # Deliberately no ``os.PathLike``: a plain function of ``os`` would follow symlinks on the way.

    __slots__ = ("holder", "is_foreign", "parts", "top")

    def __init__(
        self, top: str, parts: tuple[str, ...] = (), holder: OpenDirectory | None = None, *, is_foreign: bool = False
    ) -> None:
        self.top = top  # path of the directory: the root of the store, or one that `holder` has open
        self.parts = parts
        self.holder = holder  # has the directory open; if None, `top` is opened for each use
        self.is_foreign = is_foreign  # in a folder of another program, not in a store: filesystems may be mounted in it

    def __truediv__(self, name: str) -> StorePath:
        """Return the place `name` in this directory."""
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            msg = f"{name!r} is not a valid name in {self}"
            raise BadInput(msg, hint="give one file name, without a slash, and not . or ..")
        return StorePath(self.top, (*self.parts, name), self.holder, is_foreign=self.is_foreign)

    @property
    def name(self) -> str:
        """The last name. For the root, the last name of its path."""
        return self.parts[-1] if self.parts else os.path.basename(self.top)

    @property
    def parent(self) -> StorePath:
        """The directory of this place."""
        if not self.parts:
            raise BadInput(f"{self} is the root of a store or a directory held open, so its parent is not in the store")
        return StorePath(self.top, self.parts[:-1], self.holder, is_foreign=self.is_foreign)

    @property
    def path(self) -> Path:
        """The path, for reports and for calls that only take paths, such as statvfs of the root."""
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
