"""A catalog as the ckstore before this one made it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlite_utils import Database

from ckstore_migrations import APPLICATION_ID, VERSION, apply


def make_older(path: Path) -> None:
    """Put a catalog without the last step, with the same rows, in the place of one."""
    newer = path.rename(path.with_name("newer.db"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        apply(Database(connection, execute_plugins=False), VERSION - 1)
        connection.execute("ATTACH ? AS newer", (str(newer),))
        connection.execute("INSERT INTO main.layouts (digest) VALUES ('sha256-')")  # and no leaves: it makes no odds
        query = "SELECT name FROM newer.sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'"
        for (table,) in connection.execute(query).fetchall():
            there = _columns(connection, "newer", table)
            columns = ", ".join(column for column in _columns(connection, "main", table) if column in there)
            more, value = (", layout_id", ", 1") if table == "checkpoints" else ("", "")
            connection.execute(f"INSERT INTO main.{table} ({columns}{more}) SELECT {columns}{value} FROM newer.{table}")
        connection.execute("DETACH newer")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={VERSION - 1}")
    path.chmod(0o600)
    newer.unlink()


def _columns(connection: sqlite3.Connection, database: str, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA {database}.table_info({table})").fetchall()]
