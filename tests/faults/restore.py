"""Give a case the store that a scenario begins with: prepared once, then copied with its links, modes and times.

What the catalog says of inode numbers and of the time of a manifest's last change is made true for the copy, with the
checksum of the row, so that it is indistinguishable from the original.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from ckstore.catalog import checksum

CATALOG = "store/catalog.db"


def can_be_copied(prepared: Path) -> bool:
    """Whether a copy can be made: not if the catalog has a log of its own, which changing inode numbers would empty."""
    return not (prepared / f"{CATALOG}-wal").exists()


def copy_prepared(prepared: Path, target: Path) -> None:
    """Copy all below `prepared` into the empty directory `target`."""
    copies: dict[tuple[int, int], str] = {}
    statuses: dict[int, os.stat_result] = {}
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
            statuses[status.st_ino] = os.lstat(copy)
    if (target / CATALOG).exists():
        _renumber(target / CATALOG, statuses)
    for source, copy in reversed(directories):
        shutil.copystat(source, copy)


def _renumber(catalog: Path, statuses: dict[int, os.stat_result]) -> None:
    """Say of each file what is so for its copy; `statuses` are those of the copies, by the inodes of the originals."""
    with closing(sqlite3.connect(catalog)) as connection, connection:
        columns = connection.execute(
            "SELECT s.name, c.name FROM sqlite_schema AS s, pragma_table_info(s.name) AS c "
            "WHERE s.type = 'table' AND (c.name LIKE '%inode%' OR c.name IN ('checksum', 'manifest_ctime_ns'))"
        ).fetchall()
        has_checksum = ("checkpoints", "checksum") in columns
        checksum.install(connection)
        query = f"SELECT id FROM checkpoints WHERE {checksum.IS_RIGHT}"
        right = connection.execute(query).fetchall() if has_checksum else []
        for table, column in columns:
            if "inode" not in column:
                continue
            for old, row in connection.execute(f'SELECT "{column}", rowid FROM "{table}"').fetchall():
                there = statuses.get(old)
                if there is None:
                    continue
                connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (there.st_ino, row))
                if column == "manifest_inode" and (table, "manifest_ctime_ns") in columns:
                    connection.execute(
                        f'UPDATE "{table}" SET manifest_ctime_ns = ? WHERE rowid = ?', (there.st_ctime_ns, row)
                    )
        connection.executemany(f"UPDATE checkpoints SET checksum = {checksum.CHECKSUM} WHERE id = ?", right)
