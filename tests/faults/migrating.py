"""The next ckstore, which brings one more step of the catalog's schema: what opens a store of today has to migrate."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import ckstore_migrations
from ckstore.catalog import connection, upkeep
from ckstore_migrations import schema

if TYPE_CHECKING:
    from sqlite_utils import Database

NEXT = ckstore_migrations.VERSION + 1


def m9999_next(database: Database) -> None:
    """Add a table with a row for each blob, many pages of it, and a column of another."""
    database.execute("CREATE TABLE later (blob_id INTEGER PRIMARY KEY, filler TEXT NOT NULL) STRICT")
    database.execute("INSERT INTO later SELECT id, hex(zeroblob(4000)) FROM blobs")
    database.execute("ALTER TABLE tags ADD COLUMN later INTEGER")


def become_next(put: Callable[[object, str, object], None] = setattr) -> None:
    """Make this process the next ckstore; for a child that ends soon, or with the `setattr` of a monkeypatch."""
    if m9999_next in ckstore_migrations.STEPS:  # a process that opens the store a second time
        return
    put(ckstore_migrations, "STEPS", (*ckstore_migrations.STEPS, m9999_next))
    put(schema, "DIGESTS", tuple(schema.digests()))
    for module in (ckstore_migrations, connection, upkeep):
        put(module, "VERSION", NEXT)


def wrong_in_catalog(path: Path) -> list[str]:
    """Return what is wrong with a catalog that was opened by the next ckstore."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as catalog:
        ((version,),) = catalog.execute("PRAGMA user_version")
        if version != NEXT:
            return [f"the catalog has schema {version} after it was opened, not {NEXT}"]
        (found,) = catalog.execute("SELECT (SELECT count(*) FROM later), (SELECT count(later) FROM tags)")
    return [] if found == (found[0], 0) else [f"the migrated rows are {found}"]
