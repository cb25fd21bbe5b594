"""Whose catalog it is: one that lies outside its store could be given to two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

_TABLE = """
    CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1), -- one row
        uuid TEXT NOT NULL -- as in store.json
    ) STRICT
    """


def m0002_store(db: Database) -> None:
    """Make the table for the uuid of the store."""
    db.execute(_TABLE)
