"""Questions about space, each a function of an open connection: what is dead, what one checkpoint alone uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckstore.catalog import forms
from ckstore.catalog.forms import checked
from ckstore.catalog.text import in_parts

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence


def dead_pack_bytes(connection: sqlite3.Connection, without: Collection[tuple[str, int]] = ()) -> int:
    """Return the bytes of used packs beyond what some one checkpoint uses of them: at most that much is dead.

    The checkpoints (run, step) in `without` count as dropped.
    """
    # Without the condition the index gives the greatest of a pack at once, however many use it.
    but = f" AND u.checkpoint_id NOT IN ({_numbers(connection, without)})" if without else ""
    ((total,),) = connection.execute(
        "SELECT sum(b.nbytes - best) FROM ("  # noqa: S608 - numbers of rows
        f" SELECT p.nbytes, (SELECT max(u.used_bytes) FROM uses u WHERE u.blob_id = p.id{but}) AS best"
        " FROM blobs p WHERE p.is_pack) b WHERE best IS NOT NULL"
    ).fetchall()
    return _total(total)


def _total(total: int | None) -> int:
    """Return a sum of sizes, which is NULL of no rows."""
    forms.sizes([total or 0])
    return total or 0


def _numbers(connection: sqlite3.Connection, places: Collection[tuple[str, int]]) -> str:
    """Return the row numbers of checkpoints as a list for SQL."""
    query = "SELECT id FROM checkpoints WHERE run = ? AND step = ?"
    found = [row[0] for place in places for row in connection.execute(query, place).fetchall()]
    return ", ".join(str(int(number)) for number in found)


def pack_uses(connection: sqlite3.Connection) -> list[tuple[tuple[str, int], str, int, int]]:
    """Return (run, step), digest, size and bytes used, for every pack that a checkpoint uses."""
    rows = connection.execute(
        "SELECT c.run, c.step, b.digest, b.nbytes, u.used_bytes FROM blobs b JOIN uses u ON u.blob_id = b.id"
        " JOIN checkpoints c ON c.id = u.checkpoint_id WHERE b.is_pack"
    ).fetchall()
    checked(rows, forms.runs, forms.steps, forms.digests, forms.sizes, forms.sizes)
    return [((run, step), digest, nbytes, used_bytes) for run, step, digest, nbytes, used_bytes in rows]


def exclusive_bytes(connection: sqlite3.Connection, run: str, step: int) -> int:
    """Return the sizes of the blobs that only this checkpoint uses."""
    ((total,),) = connection.execute(
        "SELECT sum(b.nbytes) FROM checkpoints c JOIN uses u ON u.checkpoint_id = c.id JOIN blobs b ON b.id = u.blob_id"
        " WHERE c.run = ? AND c.step = ? AND NOT EXISTS ("
        "  SELECT 1 FROM uses o WHERE o.blob_id = u.blob_id AND o.checkpoint_id <> c.id)",
        (run, step),
    ).fetchall()
    return _total(total)


def freed_by(connection: sqlite3.Connection, places: Sequence[tuple[str, int]]) -> list[tuple[int, str, int]]:
    """Return (index in `places`, digest, size) of each blob that dropping checkpoints one after another leaves unused.

    The index is that of the last of its users to go; blobs that any other checkpoint uses are left out.
    """
    query = "SELECT id FROM checkpoints WHERE run = ? AND step = ?"
    going = {row[0]: i for i, place in enumerate(places) for row in connection.execute(query, place).fetchall()}
    last: dict[int, tuple[int, int]] = {}  # blob -> index of the last that goes, how many go
    for marks, part in in_parts(list(going)):
        query = f"SELECT checkpoint_id, blob_id FROM uses WHERE checkpoint_id IN {marks}"  # noqa: S608
        rows = connection.execute(query, part).fetchall()
        for checkpoint_id, blob_id in checked(rows, forms.integers, forms.integers):
            index, count = last.get(blob_id, (0, 0))
            last[blob_id] = max(index, going[checkpoint_id]), count + 1
    freed = []
    for marks, part in in_parts(sorted(last)):
        query = (
            "SELECT b.id, b.digest, b.nbytes, (SELECT count(*) FROM uses u WHERE u.blob_id = b.id)"  # noqa: S608
            f" FROM blobs b WHERE b.id IN {marks} ORDER BY b.id"
        )
        rows = checked(connection.execute(query, part).fetchall(), forms.integers, forms.digests, *(forms.sizes,) * 2)
        freed += [(last[blob][0], digest, nbytes) for blob, digest, nbytes, uses in rows if uses == last[blob][1]]
    return freed


def without_use(
    connection: sqlite3.Connection, digests: Collection[str], without: Collection[tuple[str, int]]
) -> set[str]:
    """Return those of the blobs that no checkpoint uses but, perhaps, the checkpoints `without`; unknown ones too."""
    listed = _numbers(connection, without)
    used: set[str] = set()
    for marks, part in in_parts(sorted(set(digests))):
        query = (
            f"SELECT b.digest FROM blobs b WHERE b.digest IN {marks} AND EXISTS ("  # noqa: S608
            f" SELECT 1 FROM uses u WHERE u.blob_id = b.id AND u.checkpoint_id NOT IN ({listed}))"
        )
        used.update(digest for (digest,) in connection.execute(query, part).fetchall())
    return set(digests) - used


def last_event(connection: sqlite3.Connection, kind: str) -> dict[str, Any] | None:
    """Return the detail of the newest event of a kind; None if the log has none."""
    rows = connection.execute("SELECT detail FROM events WHERE kind = ? ORDER BY id DESC LIMIT 1", (kind,)).fetchall()
    return forms.parsed_object(rows[0][0]) if rows else None
