"""Change values in the rows of a catalog as a flipped bit does, or as a program that writes the checksum as well."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from ckstore.catalog import row_checks
from ckstore.catalog.queries import encode_stamp
from ckstore.model.manifest.info import Stamp


def columns_of(table: str, store: Path) -> list[str]:
    """Return the names of the columns of a table."""
    with closing(sqlite3.connect(store / "catalog.db")) as connection:
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()]


def values_of(table: str, column: str, store: Path) -> list[Any]:
    """Return what a column holds, in the order of the rows."""
    with closing(sqlite3.connect(store / "catalog.db")) as connection:
        return [value for (value,) in connection.execute(f'SELECT "{column}" FROM {table}').fetchall()]


def flipped(value: Any, bit: int) -> Any:
    """Return the value with one bit changed; a text stays one."""
    if isinstance(value, int):
        return value ^ (1 << bit % 54)
    at = bit // 7 % len(value or "x")
    changed = chr(ord((value or "x")[at]) ^ (1 << bit % 7))
    return f"{value[:at]}{changed}{value[at + 1 :]}" if value else changed


def forge_stamps(catalog: Path, checkpoint: Path, *, where: str = "1") -> None:
    """Have the rows of checkpoints `where` say that they are of this directory, as it is now."""
    stamp = Stamp.of(checkpoint.stat().st_ino, (checkpoint / "manifest.json").stat())
    with closing(sqlite3.connect(catalog, isolation_level=None)) as connection:
        row_checks.install(connection)
        names = ("dir_inode", "manifest_inode", "manifest_mtime_ns", "manifest_ctime_ns")
        connection.execute(
            f"UPDATE checkpoints SET {', '.join(f'{n} = ?' for n in names)} WHERE {where}", encode_stamp(stamp)
        )
        connection.execute(f"UPDATE checkpoints SET checksum = {row_checks.CHECKSUM}")


def change(store: Path, table: str, column: str, value: Any, *, where: str, forged: bool = False) -> bool:
    """Set a column of the rows `where`; False if the table does not take that.

    Args:
        store: Whose catalog, which lies in it.
        table: Which table.
        column: Which column.
        value: What it is to hold.
        where: Condition in SQL.
        forged: Write the right checksums, too.
    """
    with closing(sqlite3.connect(store / "catalog.db", isolation_level=None)) as connection:
        row_checks.install(connection)
        connection.execute("PRAGMA foreign_keys=OFF")
        try:
            connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', (value,))
        except sqlite3.IntegrityError:
            return False
        if forged and column != "checksum":
            connection.execute(f"UPDATE checkpoints SET checksum = {row_checks.CHECKSUM}")
    return True
