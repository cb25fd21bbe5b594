"""Give a case the store that a scenario begins with: prepared once, then copied with its links, modes and times.

What the catalog says of inode numbers and of times is made true for the copy, so that it is indistinguishable from the
original; a row that was damaged stays so.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

from ckstore.catalog import row_checks

CATALOG = "store/catalog.db"


def can_be_copied(prepared: Path) -> bool:
    """Whether a copy can be made: not if a catalog has a log of its own, which changing inode numbers would empty.

    A child ends without closing its catalog. It is closed here, as any other process does at its end. Old catalogs that
    were set aside are not renumbered.
    """
    catalog = prepared / CATALOG
    if (prepared / f"{CATALOG}-wal").exists():
        folder = os.stat(catalog.parent)
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(catalog)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.utime(catalog.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
    return not any(catalog.parent.glob(f"{catalog.name}?*"))


def copy_prepared(prepared: Path, target: Path) -> None:
    """Copy all below `prepared` into the empty directory `target`."""
    copies: dict[tuple[int, int], str] = {}
    numbers: dict[int, int] = {}
    times: dict[int, tuple[os.stat_result, str]] = {}
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
            times[numbers[status.st_ino]] = status, copy
    for source, copy in reversed(directories):
        shutil.copystat(source, copy)
    if (target / CATALOG).exists():
        folder = os.stat((target / CATALOG).parent)
        _renumber(target / CATALOG, numbers, times)
        os.utime((target / CATALOG).parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))


def _renumber(catalog: Path, numbers: dict[int, int], times: dict[int, tuple[os.stat_result, str]]) -> None:
    with closing(sqlite3.connect(catalog)) as connection, connection:
        row_checks.install(connection)
        columns = connection.execute(
            "SELECT s.name, c.name FROM sqlite_schema AS s, pragma_table_info(s.name) AS c "
            "WHERE s.type = 'table' AND c.name LIKE '%inode%'"
        ).fetchall()
        right = _right_rows(connection) if columns else []
        for table, column in columns:
            for old, row in connection.execute(f'SELECT "{column}", rowid FROM "{table}"').fetchall():
                new = numbers.get(old, old)
                connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (new, row))
        for row, inode, changed_ns in right:
            before, copy = times.get(numbers.get(inode, inode), (None, ""))
            if before is not None and before.st_ctime_ns == changed_ns:  # no program can set it
                now = (os.lstat(copy).st_ctime_ns, row)
                connection.execute("UPDATE checkpoints SET manifest_ctime_ns = ? WHERE id = ?", now)
            connection.execute(f"UPDATE checkpoints SET checksum = {row_checks.CHECKSUM} WHERE id = ?", (row,))


def _right_rows(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Return id, inode and change time of the manifest of the rows that are not damaged, where there are such."""
    if not connection.execute("SELECT 1 FROM pragma_table_info('checkpoints') WHERE name = 'checksum'").fetchone():
        return []
    return connection.execute(
        f"SELECT id, manifest_inode, manifest_ctime_ns FROM checkpoints WHERE {row_checks.IS_RIGHT}"
    ).fetchall()
