"""What nothing reads goes: the leaves of checkpoints, which are in their manifests, and a log with one kind of event.

The rows of checkpoints are made again from the directories: without the number of their layout their checksums are
others. What is known of blobs and of their readings stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

_CHECKPOINTS = """
    CREATE TABLE checkpoints (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        manifest_id TEXT NOT NULL,
        content TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        created TEXT NOT NULL,
        writer TEXT NOT NULL,
        parent TEXT,
        message TEXT NOT NULL,
        metrics TEXT NOT NULL,
        metadata TEXT NOT NULL,
        logical_bytes INTEGER NOT NULL,
        new_bytes INTEGER NOT NULL,
        reused_bytes INTEGER NOT NULL,
        leaf_count INTEGER NOT NULL,
        dir_inode INTEGER NOT NULL,
        manifest_inode INTEGER NOT NULL,
        manifest_mtime_ns INTEGER NOT NULL,
        manifest_ctime_ns INTEGER NOT NULL,
        checksum INTEGER NOT NULL, -- xxh3_64 of the other columns
        UNIQUE (run, step)
    ) STRICT
    """

_STATEMENTS = (
    "DROP VIEW checkpoint_leaves",
    "DROP TABLE leaf_sizes",
    "DROP TABLE layout_leaves",
    "DELETE FROM uses",
    "DROP TABLE checkpoints",
    "DROP TABLE layouts",
    "DROP TABLE events",
    _CHECKPOINTS,
    "CREATE INDEX checkpoints_by_order ON checkpoints (sequence, created, manifest_id)",
    # At which start of the machine every blob was looked at; empty: at none.
    "ALTER TABLE store ADD COLUMN blobs_listed TEXT NOT NULL DEFAULT ''",
)


def m0005_less(db: Database) -> None:
    """Drop the tables of leaves and events, and make that of checkpoints without layouts."""
    for statement in _STATEMENTS:
        db.execute(statement)
