"""When a save, or a verification, read which blob last: saves read a share of what they rely on again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

_TABLE = """
    CREATE TABLE readings (
        blob_id INTEGER PRIMARY KEY REFERENCES blobs (id) ON DELETE CASCADE,
        read_ns INTEGER NOT NULL, -- when it was read to its end, or written; since 1970; 0: not known
        read_to INTEGER NOT NULL -- bytes from the start that a reading under way has behind it
    ) STRICT
    """


def m0003_readings(db: Database) -> None:
    """Make the table of readings; a blob without a row counts as never read."""
    db.execute(_TABLE)
