"""The schema: checkpoints, blobs, uses, candidates for gc, pieces, tags, the store, readings, and views for users.

Reference counts are not stored, because they are the number of rows in `uses`. Sizes are in bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

_TABLES = (
    """
    CREATE TABLE checkpoints (
        id INTEGER PRIMARY KEY,
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        directory TEXT NOT NULL, -- its name in the directory of the run
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
        UNIQUE (run, directory)
    ) STRICT
    """,
    "CREATE INDEX checkpoints_by_order ON checkpoints (sequence, created, manifest_id)",
    "CREATE INDEX checkpoints_by_step ON checkpoints (run, step)",
    """
    CREATE TABLE blobs (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        nbytes INTEGER NOT NULL,
        is_pack INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    """
    CREATE TABLE uses (
        checkpoint_id INTEGER NOT NULL REFERENCES checkpoints (id) ON DELETE CASCADE,
        blob_id INTEGER NOT NULL REFERENCES blobs (id),
        used_bytes INTEGER NOT NULL,
        PRIMARY KEY (checkpoint_id, blob_id)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX uses_by_blob ON uses (blob_id, used_bytes)",
    # Blobs that gc should check. Some of them may be in use, so gc checks `uses`.
    """
    CREATE TABLE candidates (
        blob_id INTEGER PRIMARY KEY REFERENCES blobs (id) ON DELETE CASCADE
    ) STRICT
    """,
    # Pieces that share a blob with other pieces. A piece that is a whole blob is only in `blobs`.
    """
    CREATE TABLE pieces (
        digest TEXT NOT NULL PRIMARY KEY,
        blob_id INTEGER NOT NULL REFERENCES blobs (id) ON DELETE CASCADE,
        offset INTEGER NOT NULL,
        nbytes INTEGER NOT NULL,
        sequence INTEGER NOT NULL -- of the checkpoint that said so
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX pieces_by_blob ON pieces (blob_id)",
    """
    CREATE TABLE tags (
        name TEXT NOT NULL PRIMARY KEY,
        run TEXT NOT NULL,
        step INTEGER NOT NULL,
        directory TEXT NOT NULL -- of the first generation
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX tags_by_checkpoint ON tags (run, directory)",
    # The store of this catalog. Without this table, a catalog outside its store could be used for another store.
    """
    CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1), -- one row
        uuid TEXT NOT NULL, -- as in store.json
        blobs_listed TEXT NOT NULL DEFAULT '' -- at which start of the machine every blob was looked at; empty: at none
    ) STRICT
    """,
    # The last readings of blobs. A save rereads a share of the blobs that it reuses. A blob without a row counts as
    # never read.
    """
    CREATE TABLE readings (
        blob_id INTEGER PRIMARY KEY REFERENCES blobs (id) ON DELETE CASCADE,
        read_ns INTEGER NOT NULL, -- when it was read to its end, or written; since 1970; 0: not known
        read_to INTEGER NOT NULL -- bytes from the start that a reading under way has behind it
    ) STRICT
    """,
)

_VIEWS = {
    "checkpoint_log": """
        SELECT c.run, c.step,
            substr(c.manifest_id, instr(c.manifest_id, '-') + 1, 10) AS short_id, c.created,
            (SELECT group_concat(t.name, ' ') FROM tags t
                WHERE t.run = c.run AND t.step = c.step
                    AND (c.directory = t.directory OR c.directory LIKE t.directory || '.%')) AS tags,
            c.message, c.metrics, c.logical_bytes, c.new_bytes, c.reused_bytes, c.leaf_count,
            c.parent, c.sequence, c.directory, c.manifest_id
        FROM checkpoints c
        ORDER BY c.sequence DESC, c.created DESC, c.manifest_id DESC
    """,
    "checkpoint_blobs": """
        SELECT c.run, c.step, c.directory, b.digest, b.nbytes, u.used_bytes, b.is_pack
        FROM uses u
        JOIN checkpoints c ON c.id = u.checkpoint_id
        JOIN blobs b ON b.id = u.blob_id
    """,
    "blob_references": """
        SELECT b.digest, b.nbytes, b.is_pack,
            (SELECT count(*) FROM uses u WHERE u.blob_id = b.id) AS reference_count
        FROM blobs b
    """,
    "unused_blobs": """
        SELECT b.digest, b.nbytes, b.is_pack
        FROM blobs b
        WHERE NOT EXISTS (SELECT 1 FROM uses u WHERE u.blob_id = b.id)
    """,
    "pack_shares": """
        SELECT b.digest, b.nbytes, coalesce(max(u.used_bytes), 0) AS best_used_bytes,
            round(coalesce(max(u.used_bytes), 0) * 1.0 / b.nbytes, 3) AS best_share
        FROM blobs b
        LEFT JOIN uses u ON u.blob_id = b.id
        WHERE b.is_pack
        GROUP BY b.id
    """,
    "run_summary": """
        SELECT run, count(*) AS checkpoint_count, min(step) AS first_step, max(step) AS last_step,
            min(created) AS first_created, max(created) AS last_created,
            sum(logical_bytes) AS logical_bytes, sum(new_bytes) AS new_bytes
        FROM checkpoints
        GROUP BY run
    """,
}


def m0007_tables(db: Database) -> None:
    """Create all tables, indexes and views."""
    for statement in _TABLES:
        db.execute(statement)
    for name, query in _VIEWS.items():
        db.execute(f'CREATE VIEW "{name}" AS {query.rstrip()}')
