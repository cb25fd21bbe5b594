"""Which manifest a row was made from, and a checksum of the row: what cannot be trusted is read from the directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

_COLUMNS = (
    "manifest_inode",
    "manifest_mtime_ns",
    "manifest_ctime_ns",
    "checksum",  # xxh3_64 of the other columns; the rows of before have none, and are read again
)


def m0004_stamps(db: Database) -> None:
    """Add the columns to `checkpoints`."""
    for name in _COLUMNS:
        db.execute(f"ALTER TABLE checkpoints ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
