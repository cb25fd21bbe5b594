"""Checks of a catalog and its journal files before SQLite opens them (docs/adr/0002-catalog.md).

SQLite replays the journal files of a database, and deletes the *super-journal* that a rollback journal names at its
end, wherever that file is. ckstore never writes one. So a set of files that its own protocol would not have left is not
opened, but set aside and rebuilt. Between this check and SQLite's opening, another user could swap a file only in a
directory to which they may write, and no catalog is in such a directory: in a store of a group, each user's catalog is
in that user's own directory.

Source: sqlite.org/fileformat2.html section 3, and `readSuperJournal` in SQLite's pager.c.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from ckstore.errors import CatalogProblem, CatalogUnavailable
from ckstore.fs import dirfd_stat, files

_HINTS: dict[CatalogProblem, str] = {
    "missing": "open the store for writing, or run: ckstore reindex",
    "behind": "open the store for writing to bring it up to date",
    "newer": "use the newer ckstore that wrote it",
    "damaged": "rebuild it from the checkpoints: ckstore reindex",
    "unreadable": "",
}


def unavailable(path: Path, found: str, why: CatalogProblem) -> CatalogUnavailable:
    """Return the error for a catalog at `path`, with the text of `found`."""
    return CatalogUnavailable(f"the catalog {path} {found}", why=why, hint=_HINTS[why])


class Examined(NamedTuple):
    """The state of a catalog before it was opened."""

    identity: tuple[int, int]  # its device and inode number
    file_bytes: int  # the size of the database and its log
    may_map: bool  # whether a mapped page of a file beside it keeps its room once a byte of it was written


def examine(path: Path, *, alone: bool) -> Examined:
    """Examine the files of the catalog. Raises `CatalogUnavailable` if ckstore would not have left them."""
    # `alone`: no connection of this process is open, so the database may be opened and closed without loss of its
    # locks.
    try:
        database = path.lstat()  # a symlink there would have SQLite write to a file elsewhere
        found, strange = _beside(path, database)
        if not strange and alone and found.get("-journal") and _is_stray_journal(path):
            strange = f"{path.name}-journal exists next to a database that uses a write-ahead log"
        if not strange:
            return Examined((database.st_dev, database.st_ino), found[""] + found.get("-wal", 0), may_be_mapped(path))
    except FileNotFoundError as error:  # also renamed meanwhile: another process rebuilds it
        raise unavailable(path, "is missing", "missing") from error
    except OSError as error:
        raise unavailable(path, f"cannot be examined: {error.strerror}", "unreadable") from error
    raise unavailable(path, f"is not as ckstore leaves it: {strange}", "damaged")


_SAFE_BLOCK_BYTES = 4096


def may_be_mapped(path: Path) -> bool:
    """Whether a mapped page of a file in this directory keeps its disk space once a byte of it was written."""
    if dirfd_stat.free_space(path).block_bytes < _SAFE_BLOCK_BYTES:
        return False
    if os.major(path.stat().st_dev):  # a block device, which btrfs never names: others need not import ctypes
        return True
    from ckstore.fs.host import statfs

    return statfs.magic_number(path) != statfs.BTRFS


SUFFIXES = ("-wal", "-shm", "-journal")
"""The suffixes of SQLite's own files for a database."""

_MAGIC = bytes.fromhex("d9d505f920a163d7")
_PAGE_COUNT_AT = 16
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LOG = b"\x02\x02"
_VERSIONS_AT = 18


def _beside(path: Path, database: os.stat_result) -> tuple[dict[str, int], str]:
    """Return the sizes of the catalog and its journal files, and the reason if ckstore would not have left them."""
    sizes: dict[str, int] = {}
    folder = path.parent.stat()
    for suffix in ("", *SUFFIXES):
        try:
            found = database if not suffix else os.lstat(f"{path}{suffix}")
        except FileNotFoundError:
            continue
        owners = {os.geteuid(), database.st_uid if suffix else folder.st_uid}
        if problem := _why_strange_file(found, folder, owners):
            return sizes, f"{path.name}{suffix} {problem}" if suffix else problem
        if suffix == "-journal" and found.st_size and _names_another(path):
            named = f"{path.name}{suffix} names a second journal"
            return sizes, f"{named}, which SQLite would delete; ckstore never writes one"
        sizes[suffix] = found.st_size
    return sizes, ""


def _why_strange_file(found: os.stat_result, folder: os.stat_result, owners: set[int]) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_nlink > 1:
        return f"has {found.st_nlink} hard links; writing to it would also change the file under its other names"
    if found.st_uid not in owners:
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & _WRITABLE_BY_OTHERS and not folder.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _names_another(path: Path) -> bool:
    """Whether a journal ends with the name of a super-journal."""
    # SQLite's locks are on the database and on its map, so that closing a descriptor of the journal releases none.
    with files.opened_to_read(f"{path}-journal") as fd:
        end = os.fstat(fd).st_size
        # SQLite looks for the name at the end only, so only the end is looked at.
        return os.pread(fd, len(_MAGIC), max(0, end - len(_MAGIC))) == _MAGIC


def _is_stray_journal(path: Path) -> bool:
    """Whether a database with a log also has a non-empty rollback journal."""
    # A process can die between the two while it makes a catalog: then the journal says that there was none before.
    try:
        with files.opened_to_read(f"{path}-journal") as fd:
            head = os.pread(fd, _PAGE_COUNT_AT + 4, 0)
    except FileNotFoundError:
        return False
    if not head.startswith(_MAGIC) or not int.from_bytes(head[_PAGE_COUNT_AT:], "big"):
        return False
    with files.opened_to_read(path) as fd:
        return os.pread(fd, len(_LOG), _VERSIONS_AT) == _LOG
