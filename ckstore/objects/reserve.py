"""A little space and a few inodes that are kept back: on a full disk gc gives them up first.

To free anything gc has to write to the catalog, and to make names in ``trash/``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckstore.fs import files, links
from ckstore.objects.trash import names_in

if TYPE_CHECKING:
    from pathlib import Path

    from ckstore.objects.layout import Layout

RESERVE_BYTES = 2**20
_INODES = 8
_PLENTY = 16
"""The reserve is made only where this many times as much is free, so that it is not made again from the last bytes."""


def fill(layout: Layout) -> None:
    """Make the reserve if it is not there and there is plenty of room; nothing is raised."""
    names = [f"space-{number}" for number in range(_INODES)]
    try:
        if set(names) <= set(names_in(_folder(layout))):
            return
        status = os.statvfs(layout.root)
        if status.f_bavail * status.f_frsize < _PLENTY * RESERVE_BYTES or 0 < status.f_favail < _PLENTY * _INODES:
            return
        for name in names:
            _make(_folder(layout) / name, RESERVE_BYTES // _INODES)
    except OSError:  # no room after all, or no right to write: then gc on a full disk may need help
        return


def kept_bytes(layout: Layout) -> int:
    """Return the size of what is kept back now.

    Raises:
        OSError: It cannot be looked at.
    """
    total = 0
    for name in names_in(_folder(layout)):
        try:
            total += os.stat(_folder(layout) / name, follow_symlinks=False).st_size
        except FileNotFoundError:  # given up meanwhile
            continue
    return total


def _folder(layout: Layout) -> Path:
    return layout.root / "reserve"


def _make(path: Path, nbytes: int) -> None:
    try:
        files.allocate(path, nbytes)
    except FileExistsError:
        return


def give_up_when_full(layout: Layout) -> None:
    """Remove the reserve if the filesystem has less room than that left.

    Raises:
        OSError: A file could not be removed.
    """
    status = os.statvfs(layout.root)
    has_inodes = status.f_favail > _INODES or status.f_files == 0
    if status.f_bavail * status.f_frsize > RESERVE_BYTES and has_inodes:
        return
    for name in names_in(_folder(layout)):
        try:
            links.unlink(_folder(layout) / name)
        except FileNotFoundError:
            continue
