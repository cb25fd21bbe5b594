"""Make the rows of one checkpoint equal to its directory, in the caller's transaction.

`set_checkpoint` is the only function that makes rows of a checkpoint. Each use of a blob by a checkpoint is a row, and
the reference count of a blob is the number of these rows, so no code changes a count. The time of `set_checkpoint`
depends on the size of the checkpoint, not on the number of checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.catalog import queries
from ckstore.catalog.queries import (
    decode_text,
    encode_health,
    encode_json,
    encode_metrics,
    encode_stamp,
    encode_text,
    in_parts,
)
from ckstore.catalog.row_checks import CHECKSUM, IS_RIGHT
from ckstore.errors import BadInput
from ckstore.model.names import CheckpointKey

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from ckstore.model.manifest.info import Published
    from ckstore.model.manifest.manifest import Manifest

_DESCRIBED = (
    "manifest_id, content, sequence, created, writer, parent, message, metrics, metadata, logical_bytes, new_bytes,"
    " reused_bytes, leaf_count, health"
)


def set_checkpoint(connection: sqlite3.Connection, key: CheckpointKey, found: Published | None) -> None:
    """Make the rows of a key equal to `found`, or remove them if there is no such checkpoint."""
    if found is not None and (found.manifest.run, found.manifest.step) != key.run_step:
        wrong = found.manifest.name
        raise BadInput(f"the manifest in {key.run}/{key.directory} names {wrong}")
    connection.text_factory = decode_text
    rows = connection.execute(
        f"SELECT id, {IS_RIGHT}, {queries.STAMP}, {_DESCRIBED} FROM checkpoints WHERE run = ? AND directory = ?",  # noqa: S608
        (key.run, key.directory),
    ).fetchall()
    if found is not None and len(rows) == 1:
        ((checkpoint_id, right, *said),) = rows
        stamp = encode_stamp(found.stamp)
        # If nothing changed, no page is written.
        is_same = right and tuple(said[len(stamp) :]) == _described(found)
        # An eviction, a fetch or a compaction changes the uses.
        wanted = {file.digest for file in found.local_files}
        used = "SELECT b.digest FROM uses u JOIN blobs b ON b.id = u.blob_id WHERE u.checkpoint_id = ?"
        if is_same and wanted == {digest for (digest,) in connection.execute(used, (checkpoint_id,))}:
            if tuple(said[: len(stamp)]) != stamp:  # the same checkpoint in another directory
                _set_stamp(connection, checkpoint_id, stamp)
            return
    # All rows with the key are removed, because a damaged index may have admitted two rows.
    for row in rows:
        _remove_checkpoint(connection, row[0])
    if found is not None:
        _insert_checkpoint(connection, key, found)


def remove_wrong(connection: sqlite3.Connection) -> int:
    """Remove the rows of `checkpoints` whose checksums are wrong, and return the number of these rows."""
    wrong = wrong_ids(connection)
    for checkpoint_id in wrong:
        _remove_checkpoint(connection, checkpoint_id)
    # If the number of a row has changed, its uses still have the old number. They must not become uses of a later row
    # with the old number.
    stray = "FROM uses WHERE checkpoint_id NOT IN (SELECT id FROM checkpoints)"
    connection.execute(f"INSERT OR IGNORE INTO candidates (blob_id) SELECT blob_id {stray}")
    connection.execute(f"DELETE {stray}")
    return len(wrong)


def wrong_ids(connection: sqlite3.Connection) -> list[int]:
    """Return the row numbers of the rows of `checkpoints` whose checksums are wrong."""
    query = f"SELECT id FROM checkpoints NOT INDEXED WHERE NOT {IS_RIGHT}"  # noqa: S608
    return [number for (number,) in connection.execute(query).fetchall()]


def _set_stamp(connection: sqlite3.Connection, checkpoint_id: int, stamp: tuple[int, int, int, int]) -> None:
    """Record the stamp of the directory from which a row was made, and set the checksum of the row."""
    changes = ", ".join(f"{name} = ?" for name in queries.STAMP.split(", "))
    connection.execute(f"UPDATE checkpoints SET {changes} WHERE id = ?", (*stamp, checkpoint_id))  # noqa: S608
    connection.execute(f"UPDATE checkpoints SET checksum = {CHECKSUM} WHERE id = ?", (checkpoint_id,))  # noqa: S608


def _described(found: Published) -> tuple[object, ...]:
    """Return the columns of a row for a manifest, in the order of `_DESCRIBED`."""
    manifest, about = found.manifest, found.manifest.description
    return (
        found.manifest_id,
        manifest.content,
        manifest.sequence,
        manifest.created,
        manifest.writer,
        about.parent,
        about.message,
        encode_metrics(about.metrics),
        encode_json(about.metadata),
        manifest.logical_bytes,
        manifest.new_bytes,
        manifest.reused_bytes,
        len(manifest.leaves),
        encode_health(manifest.health),
    )


def row_count(manifest: Manifest) -> int:
    """Return the maximum number of rows that a checkpoint needs."""
    extents = sum(len(storage.extents) for storage in manifest.storages)
    return len(manifest.stored) + extents


def set_tags(connection: sqlite3.Connection, tags: Mapping[str, CheckpointKey]) -> None:
    """Make the rows of tags equal to `tags`."""
    old = queries.tags(connection)
    connection.executemany("DELETE FROM tags WHERE name = ?", [(n,) for n in old if n not in tags])
    connection.executemany(
        "INSERT INTO tags (name, run, step, directory) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET run = excluded.run, step = excluded.step,"
        " directory = excluded.directory",
        [(name, *key) for name, key in tags.items() if old.get(name) != key],
    )


def set_readings(connection: sqlite3.Connection, readings: Mapping[str, tuple[int, int]]) -> None:
    """Record the last readings of blobs, digest -> `read_ns` and `read_to`. Blobs without a row are skipped."""
    connection.executemany(
        "INSERT INTO readings (blob_id, read_ns, read_to) SELECT id, ?, ? FROM blobs WHERE digest = ?"
        " ON CONFLICT (blob_id) DO UPDATE SET read_ns = excluded.read_ns, read_to = excluded.read_to",
        [(read_ns, read_to, digest) for digest, (read_ns, read_to) in readings.items()],
    )


def add_candidates(connection: sqlite3.Connection, blobs: Iterable[tuple[str, int]]) -> None:
    """Insert rows for blobs, given as (digest, size), and make blobs without a use candidates for gc."""
    listed = sorted(set(blobs))
    connection.executemany("INSERT OR IGNORE INTO blobs (digest, nbytes) VALUES (?, ?)", listed)
    connection.executemany(
        "INSERT OR IGNORE INTO candidates (blob_id) SELECT b.id FROM blobs b WHERE b.digest = ?"
        " AND NOT EXISTS (SELECT 1 FROM uses u WHERE u.blob_id = b.id)",
        [(digest,) for digest, _ in listed],
    )


def forget(connection: sqlite3.Connection, digests: Iterable[str]) -> int:
    """Delete the rows of the blobs that no checkpoint uses, and of their pieces. Return the number of these blobs."""
    cursor = connection.executemany(
        "DELETE FROM blobs WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM uses u WHERE u.blob_id = blobs.id)",
        [(digest,) for digest in digests],
    )
    return cursor.rowcount


def set_blobs_listed(connection: sqlite3.Connection, boot_id: str) -> None:
    """Record that all blobs were listed during the boot with this id."""
    connection.execute(
        "INSERT INTO store (id, uuid, blobs_listed) VALUES (1, '', ?)"
        " ON CONFLICT (id) DO UPDATE SET blobs_listed = excluded.blobs_listed",
        (boot_id,),
    )


def _remove_checkpoint(connection: sqlite3.Connection, checkpoint_id: int) -> None:
    connection.execute(
        # This must precede the deletion of the row and its uses. Afterwards, the blobs that lost their last use are
        # unknown.
        "INSERT OR IGNORE INTO candidates (blob_id)"
        " SELECT mine.blob_id FROM uses AS mine WHERE mine.checkpoint_id = :id AND NOT EXISTS ("
        "  SELECT 1 FROM uses AS other"
        "  WHERE other.blob_id = mine.blob_id AND other.checkpoint_id <> :id)",
        {"id": checkpoint_id},
    )
    connection.execute("DELETE FROM checkpoints WHERE id = ?", (checkpoint_id,))


def _insert_checkpoint(connection: sqlite3.Connection, key: CheckpointKey, found: Published) -> None:
    values = [encode_text(value) if isinstance(value, str) else value for value in _described(found)]
    marks = ", ".join("CAST(? AS TEXT)" if name in ("writer", "message") else "?" for name in _DESCRIBED.split(", "))
    cursor = connection.execute(
        f"INSERT INTO checkpoints (run, step, directory, {_DESCRIBED}, {queries.STAMP}, checksum)"  # noqa: S608
        f" VALUES (?, ?, ?, {marks}, 0, 0, 0, 0, 0)",
        (*key, *values),
    )
    checkpoint_id = int(cursor.lastrowid or 0)
    _set_stamp(connection, checkpoint_id, encode_stamp(found.stamp))
    _insert_blobs(connection, checkpoint_id, found)


# -------------------------------------------------------------------------------------------- blobs


@dataclass(frozen=True, slots=True)
class _Contents:
    """The pieces of one plain file in a manifest: piece digest -> (offset, length)."""

    digest: str
    nbytes: int
    pieces: dict[str, tuple[int, int]]

    @property
    def is_pack(self) -> bool:
        return any(piece != self.digest for piece in self.pieces)

    @property
    def used_bytes(self) -> int:
        if not self.pieces:  # an encoded blob, or a base of a compacted checkpoint
            return self.nbytes
        # Count the alignment of pieces in packs. Otherwise, a pack of one-element tensors would seem mostly dead.
        return min(self.nbytes, sum(-(-length // 64) * 64 for _, length in self.pieces.values()))


def _contents(found: Published) -> list[_Contents]:
    # Only local files count, because the bytes of remote-only blobs may be freed, so no save may find their pieces.
    stored = {file.digest: _Contents(file.digest, file.nbytes, {}) for file in found.local_files}
    manifest = found.manifest
    # Pieces in an encoded blob are skipped, because a save cannot reuse them.
    places = [stored.get(blob.digest) for blob in manifest.blobs]
    for storage in manifest.storages:
        for extent in storage.extents:
            if (place := places[extent.blob]) is not None:
                place.pieces.setdefault(extent.piece, (extent.offset, extent.length))
    return list(stored.values())


def _insert_blobs(connection: sqlite3.Connection, checkpoint_id: int, found: Published) -> None:
    blobs = sorted(_contents(found), key=lambda blob: blob.digest)  # index pages are written in order, not at random
    connection.executemany(
        "INSERT INTO blobs (digest, nbytes, is_pack) VALUES (?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET nbytes = excluded.nbytes, is_pack = excluded.is_pack"
        " WHERE nbytes <> excluded.nbytes OR is_pack < excluded.is_pack",
        [(blob.digest, blob.nbytes, int(blob.is_pack)) for blob in blobs],
    )
    connection.executemany(
        "INSERT INTO uses (checkpoint_id, blob_id, used_bytes) SELECT ?, id, ? FROM blobs WHERE digest = ?",
        [(checkpoint_id, blob.used_bytes, blob.digest) for blob in blobs],
    )
    connection.execute(
        "DELETE FROM candidates WHERE blob_id IN (SELECT blob_id FROM uses WHERE checkpoint_id = ?)", (checkpoint_id,)
    )
    _insert_pieces(connection, [blob for blob in blobs if blob.is_pack], found.manifest.sequence)


def _insert_pieces(connection: sqlite3.Connection, packs: list[_Contents], sequence: int) -> None:
    ids: dict[str, int] = {}
    for marks, digests in in_parts([pack.digest for pack in packs]):
        query = f"SELECT digest, id FROM blobs WHERE digest IN {marks}"  # noqa: S608
        ids.update(connection.execute(query, digests).fetchall())
    rows = [
        (piece, ids[pack.digest], offset, length, sequence)
        for pack in packs
        for piece, (offset, length) in pack.pieces.items()
        if piece != pack.digest
    ]
    # In the order of the primary key, pages are filled one after another.
    rows.sort()
    # The location in the newest checkpoint is kept, because the piece may have been moved out of a mostly dead pack.
    connection.executemany(
        "INSERT INTO pieces (digest, blob_id, offset, nbytes, sequence) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (digest) DO UPDATE SET blob_id = excluded.blob_id, offset = excluded.offset,"
        "  nbytes = excluded.nbytes, sequence = excluded.sequence"
        " WHERE blob_id <> excluded.blob_id AND sequence < excluded.sequence",
        rows,
    )
