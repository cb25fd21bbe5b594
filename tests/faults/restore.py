"""Give a case the store that a scenario begins with: prepared once, then copied with its links, modes and times.

What the catalog says of inode numbers is made true for the copy, so that it is indistinguishable from the original.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

CATALOG = "store/catalog.db"


def can_be_copied(prepared: Path) -> bool:
    """Whether a copy can be made: not if the catalog has a log of its own, which changing inode numbers would empty."""
    return not (prepared / f"{CATALOG}-wal").exists()


def copy_prepared(prepared: Path, target: Path) -> None:
    """Copy all below `prepared` into the empty directory `target`."""
    copies: dict[tuple[int, int], str] = {}
    numbers: dict[int, int] = {}
    directories = []
    for where, names, files in os.walk(prepared):
        there = os.path.join(target, os.path.relpath(where, prepared))
        for name in (*names, *files):
            source, copy = os.path.join(where, name), os.path.join(there, name)
            status = os.lstat(source)
            inode = (status.st_dev, status.st_ino)
            if inode in copies:
                os.link(copies[inode], copy, follow_symlinks=False)
                continue
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(copy)
                directories.append((source, copy))
            elif stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(source), copy)
            else:
                copies[inode] = copy
                shutil.copyfile(source, copy)
                shutil.copystat(source, copy)
            numbers[status.st_ino] = os.lstat(copy).st_ino
    if (target / CATALOG).exists():
        _renumber(target / CATALOG, numbers)
    for source, copy in reversed(directories):
        shutil.copystat(source, copy)


def _renumber(catalog: Path, numbers: dict[int, int]) -> None:
    with closing(sqlite3.connect(catalog)) as connection, connection:
        columns = connection.execute(
            "SELECT s.name, c.name FROM sqlite_schema AS s, pragma_table_info(s.name) AS c "
            "WHERE s.type = 'table' AND c.name LIKE '%inode%'"
        ).fetchall()
        for table, column in columns:
            for old, row in connection.execute(f'SELECT "{column}", rowid FROM "{table}"').fetchall():
                new = numbers.get(old, old)
                connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (new, row))
