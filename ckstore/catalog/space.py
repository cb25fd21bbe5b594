"""Queries about used and dead bytes and unused blobs, each a function of an open connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.catalog import row_checks
from ckstore.catalog.queries import in_parts
from ckstore.catalog.row_checks import checked
from ckstore.model.names import CheckpointKey

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection


def dead_pack_bytes(connection: sqlite3.Connection, without: Collection[CheckpointKey] = ()) -> int:
    """Return an upper bound of the dead bytes in used packs.

    For each pack, the bound is its size minus the largest number of its bytes that a single checkpoint uses. The
    checkpoints in `without` count as dropped.
    """
    # If no checkpoint is left out, SQLite reads the greatest use of a pack from the index, however many checkpoints use
    # the pack.
    but = f" AND u.checkpoint_id NOT IN ({_numbers(connection, without)})" if without else ""
    ((total,),) = connection.execute(
        "SELECT sum(b.nbytes - best) FROM ("  # noqa: S608 - numbers of rows
        f" SELECT p.nbytes, (SELECT max(u.used_bytes) FROM uses u WHERE u.blob_id = p.id{but}) AS best"
        " FROM blobs p WHERE p.is_pack) b WHERE best IS NOT NULL"
    ).fetchall()
    return _total(total)


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the total size of the blobs that checkpoints use. Each blob counts once."""
    query = "SELECT sum(nbytes) FROM blobs b WHERE EXISTS (SELECT 1 FROM uses u WHERE u.blob_id = b.id)"
    ((total,),) = connection.execute(query).fetchall()
    return _total(total)


def _total(total: int | None) -> int:
    """Check and return a sum of sizes. In SQL, the sum of no rows is NULL."""
    row_checks.sizes([total or 0])
    return total or 0


def _numbers(connection: sqlite3.Connection, places: Collection[CheckpointKey]) -> str:
    """Return the row numbers of checkpoints as a list for SQL."""
    names: dict[str, list[str]] = {}
    for key in places:
        names.setdefault(key.run, []).append(key.directory)
    found = []
    for run, of_run in names.items():
        for marks, part in in_parts(of_run):
            query = f"SELECT id FROM checkpoints WHERE run = ? AND directory IN {marks}"  # noqa: S608
            found += connection.execute(query, (run, *part)).fetchall()
    # Row numbers are converted to integers, so that no text of the caller gets into a statement.
    return ", ".join(str(int(number)) for (number,) in found)


def pack_uses(connection: sqlite3.Connection) -> list[tuple[CheckpointKey, str, int, int]]:
    """Return the key of the checkpoint, and the digest, size and used bytes of the pack, for each use of a pack."""
    rows = connection.execute(
        "SELECT c.run, c.step, c.directory, b.digest, b.nbytes, u.used_bytes"
        " FROM blobs b JOIN uses u ON u.blob_id = b.id"
        " JOIN checkpoints c ON c.id = u.checkpoint_id WHERE b.is_pack"
    ).fetchall()
    checked(
        rows,
        row_checks.runs,
        row_checks.steps,
        row_checks.directories,
        row_checks.digests,
        row_checks.sizes,
        row_checks.sizes,
    )
    return [(CheckpointKey(*row[:3]), *row[3:]) for row in rows]


def without_use(
    connection: sqlite3.Connection, digests: Collection[str], *, without: Collection[CheckpointKey] = ()
) -> set[str]:
    """Return the digests that no checkpoint uses. Unknown digests are included.

    The checkpoints in `without` count as dropped.
    """
    listed = _numbers(connection, without)
    used: set[str] = set()
    for marks, part in in_parts(sorted(set(digests))):
        query = (
            f"SELECT b.digest FROM blobs b WHERE b.digest IN {marks} AND EXISTS ("  # noqa: S608
            f" SELECT 1 FROM uses u WHERE u.blob_id = b.id AND u.checkpoint_id NOT IN ({listed}))"
        )
        used.update(digest for (digest,) in connection.execute(query, part).fetchall())
    return set(digests) - used
