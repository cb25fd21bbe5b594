"""Stores with a catalog, a log or a journal from elsewhere: rows that are paths, schemas that never end."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable

from tests.hostile.scene import Builder, Scene

Statement = str | tuple[str, tuple[object, ...]]
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_SECTOR_BYTES = 512
_PAGE_BYTES = 4096
_EVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


def _changed(statements: Callable[[Scene], Iterable[Statement]]) -> Builder:
    """The statements were run in the catalog; those that it does not take are left out."""

    def build(scene: Scene) -> None:
        connection = sqlite3.connect(scene.store / "catalog.db", isolation_level=None)
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("PRAGMA writable_schema=ON")
        for statement in statements(scene):
            text, values = (statement, ()) if isinstance(statement, str) else statement
            try:
                connection.execute(text, values)
            except sqlite3.Error:  # this schema has no such column
                continue
        connection.close()

    return build


def _sql(*statements: str) -> Builder:
    return _changed(lambda _: statements)


def _digests(path: Callable[[Scene], str]) -> Builder:
    """Blobs that no checkpoint uses, whose digests are paths."""

    def statements(scene: Scene) -> Iterable[Statement]:
        yield "DELETE FROM uses"
        yield ("UPDATE blobs SET digest = ? WHERE id = (SELECT min(id) FROM blobs)", (path(scene),))
        yield ("INSERT INTO blobs (digest, nbytes, is_pack) VALUES (?, 10, 0)", (f"{path(scene)}/../thesis.txt",))
        yield ("UPDATE pieces SET digest = ?", (path(scene),))
        yield "INSERT OR IGNORE INTO candidates SELECT id FROM blobs"

    return _changed(statements)


def _texts(column: str, value: str, table: str = "checkpoints") -> Builder:
    return _changed(lambda _: [(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))])


def _as_view(table: str, select: str) -> Builder:
    """A table was replaced by a view of the same columns."""

    def statements(scene: Scene) -> Iterable[Statement]:
        connection = sqlite3.connect(scene.store / "catalog.db")
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()]
        connection.close()
        listed = ", ".join(f"i AS {column}" for column in columns)
        yield f"ALTER TABLE {table} RENAME TO {table}_before"
        yield f"DROP TABLE {table}_before"
        yield f"CREATE VIEW {table} AS {select} {listed} FROM n"

    return _changed(statements)


def _triggers(scene: Scene) -> Iterable[Statement]:
    for table in ("checkpoints", "blobs", "uses", "tags", "candidates"):
        for when in ("INSERT ON", "UPDATE ON", "DELETE ON"):
            name = f"more_{table}_{when[:3]}"
            yield (
                f"CREATE TRIGGER {name} AFTER {when} {table} BEGIN "
                f"INSERT INTO candidates (blob_id) {_EVER} i FROM n; END"
            )
    del scene


def _super_journal(*, valid: bool) -> Builder:
    """The journal names a file of the user as its super-journal: SQLite removes that after it has played it back."""

    def build(scene: Scene) -> None:
        target = os.fsencode(scene.outside / "thesis.txt")
        pages = (scene.store / "catalog.db").stat().st_size // _PAGE_BYTES
        head = _JOURNAL_MAGIC + b"".join(
            number.to_bytes(4, "big") for number in (0, 0, pages, _SECTOR_BYTES, _PAGE_BYTES)
        )
        tail = (2**30 // _PAGE_BYTES + 1).to_bytes(4, "big") + target + len(target).to_bytes(4, "big")
        tail += (sum(target) if valid else 7).to_bytes(4, "big") + _JOURNAL_MAGIC
        (scene.store / "catalog.db-journal").write_bytes(head.ljust(_SECTOR_BYTES, b"\0") + tail)
        (scene.outside / "thesis.txt").write_text("my own thesis")

    return build


def _hot_journal(scene: Scene) -> None:
    """A journal that makes the database one of other pages when it is played back."""
    data = (scene.store / "catalog.db").read_bytes()
    record = (1).to_bytes(4, "big") + bytes(_PAGE_BYTES) + (0).to_bytes(4, "big")
    head = _JOURNAL_MAGIC + b"".join(number.to_bytes(4, "big") for number in (1, 0, 1, _SECTOR_BYTES, _PAGE_BYTES))
    (scene.store / "catalog.db-journal").write_bytes(head.ljust(_SECTOR_BYTES, b"\0") + record)
    del data


def _beside(name: str, data: bytes) -> Builder:
    def build(scene: Scene) -> None:
        (scene.store / name).write_bytes(data)

    return build


def _patched(offset: int, data: bytes) -> Builder:
    def build(scene: Scene) -> None:
        with (scene.store / "catalog.db").open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return build


def _another_store(scene: Scene) -> None:
    connection = sqlite3.connect(scene.store / "catalog.db", isolation_level=None)
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        for row in connection.execute(f"PRAGMA table_info({name})").fetchall():
            if row[1] in ("uuid", "store", "value"):
                connection.execute(f"UPDATE {name} SET {row[1]} = '00000000-0000-4000-8000-000000000000'")
    connection.close()


def _wal_left(scene: Scene) -> None:
    """A log with transactions that were never moved into the database."""
    connection = sqlite3.connect(scene.store / "catalog.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(
        "UPDATE checkpoints SET run = '../../outside' WHERE rowid = (SELECT min(rowid) FROM checkpoints)"
    )
    kept = {name: (scene.store / name).read_bytes() for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm")}
    connection.close()
    for name, data in kept.items():
        (scene.store / name).write_bytes(data)


CASES: dict[str, Builder] = {
    "untouched": lambda _: None,
    "no catalog": lambda scene: (scene.store / "catalog.db").unlink(),
    "digests are relative paths": _digests(lambda _: "../../../outside/thesis.txt"),
    "digests are absolute paths": _digests(lambda scene: str(scene.outside / "thesis.txt")),
    "digests begin as digests do": _digests(lambda scene: f"xxh3-/../../../../..{scene.outside}/thesis.txt"),
    "digests of two dots": _digests(lambda _: ".."),
    "digests are empty": _digests(lambda _: ""),
    "digests hold a zero byte": _digests(lambda _: "../../outside/thesis.txt\0"),
    "digests are of a directory": _digests(lambda _: "../../outside/sub"),
    "runs are paths": _texts("run", "../../outside"),
    "runs are absolute paths": _texts("run", "/"),
    "runs are dots": _texts("run", ".."),
    "steps are negative": _sql("UPDATE checkpoints SET step = -step"),
    "steps are huge": _sql("UPDATE checkpoints SET step = 9223372036854775807 - step"),
    "ids are paths": _texts("manifest_id", "../../outside/thesis.txt"),
    "tags in the catalog are paths": _sql(
        "DELETE FROM tags", "INSERT INTO tags (name, run, step) VALUES ('../../outside/thesis.txt', '../../outside', 2)"
    ),
    "ten thousand tags in the catalog": _sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) "
        "INSERT INTO tags (name, run, step) SELECT 't' || i, 'main', i FROM n"
    ),
    "sequence 2^53 in the catalog": _sql("UPDATE checkpoints SET sequence = 9007199254740992"),
    "sequence 2^63 - 1 in the catalog": _sql("UPDATE checkpoints SET sequence = 9223372036854775807"),
    "sequence -1 in the catalog": _sql("UPDATE checkpoints SET sequence = -1"),
    "inodes are other ones": _sql("UPDATE checkpoints SET dir_inode = 7"),
    "metrics are no JSON": _texts("metrics", "{"),
    "metrics are a deep JSON": _texts("metrics", "[" * 100_000),
    "metadata is a deep JSON": _texts("metadata", '{"a":' * 50_000 + "1" + "}" * 50_000),
    "messages of 20 MB": _texts("message", "x" * 20_000_000),
    "times that do not exist": _texts("created", "9999-99-99T99:99:99.999999Z"),
    "sizes are negative": _sql("UPDATE blobs SET nbytes = -nbytes", "UPDATE uses SET used_bytes = -1"),
    "sizes of 2^62": _sql("UPDATE blobs SET nbytes = 4611686018427387904"),
    "every blob is a pack": _sql("UPDATE blobs SET is_pack = 1"),
    "no uses": _sql("DELETE FROM uses", "INSERT OR IGNORE INTO candidates SELECT id FROM blobs"),
    "no checkpoints": _sql("DELETE FROM checkpoints"),
    "checkpoints that are not there": _sql(
        "UPDATE checkpoints SET step = step + 1000, sequence = sequence + 1000, metrics = '{\"loss\":-1}'"
    ),
    "a view that never ends: checkpoints": _as_view("checkpoints", _EVER),
    "a view that never ends: blobs": _as_view("blobs", _EVER),
    "a view that never ends: uses": _as_view("uses", _EVER),
    "a view that never ends: tags": _as_view("tags", _EVER),
    "a view that never ends: readings": _as_view("readings", _EVER),
    "triggers that never end": _changed(_triggers),
    "a generated column": _sql(
        "ALTER TABLE checkpoints ADD COLUMN more AS (hex(zeroblob(1000000)))",
        "ALTER TABLE blobs ADD COLUMN more AS (hex(zeroblob(1000000)))",
    ),
    "an index of an expression": _sql("CREATE INDEX more ON checkpoints (hex(zeroblob(run || 1000000)))"),
    "a check that takes long": _sql(
        "UPDATE sqlite_schema SET sql = replace(sql, 'run TEXT NOT NULL', "
        "'run TEXT NOT NULL CHECK (length(zeroblob(100000000)) > 0)') WHERE name = 'checkpoints'"
    ),
    "a schema that names another page": _sql("UPDATE sqlite_schema SET rootpage = 2"),
    "a schema of nonsense": _sql("UPDATE sqlite_schema SET sql = 'CREATE TABLE ((('"),
    "a virtual table": _sql("DROP TABLE tags", "CREATE VIRTUAL TABLE tags USING fts5(name, run, step)"),
    "a table too many": _sql("CREATE TABLE more (a)", "CREATE VIEW every AS SELECT * FROM checkpoints"),
    "a table too few": _sql("DROP TABLE candidates"),
    "blobs in place of texts": _sql("UPDATE checkpoints SET run = x'00ff', manifest_id = x'80'"),
    "texts that are no UTF-8": _sql("UPDATE checkpoints SET message = CAST(x'ff80' AS TEXT)"),
    "another application id": _sql("PRAGMA application_id=1"),
    "a schema of the future": _sql("PRAGMA user_version=1000"),
    "a schema of the past": _sql("PRAGMA user_version=0"),
    "a catalog with a rollback journal": _sql("PRAGMA journal_mode=DELETE"),
    "a catalog of another store": _another_store,
    "a catalog that is no database": _beside("catalog.db", b"not a database" * 1000),
    "a catalog of zeros": _beside("catalog.db", bytes(100_000)),
    "a catalog of another page size": _patched(16, (512).to_bytes(2, "big")),
    "a catalog with a free list that is a ring": _patched(32, (2).to_bytes(4, "big") + (9).to_bytes(4, "big")),
    "a catalog of 2^32 pages": _patched(28, b"\xff\xff\xff\xff"),
    "a catalog with a broken first page": _patched(100, b"\xff" * 200),
    "a log of nonsense": _beside("catalog.db-wal", os.urandom(100_000)),
    "a log with rows that lead elsewhere": _wal_left,
    "a map of the log of nonsense": _beside("catalog.db-shm", b"\xff" * 32768),
    "a journal of nonsense": _beside("catalog.db-journal", _JOURNAL_MAGIC + b"\xff" * 5000),
    "a journal with a super-journal outside": _super_journal(valid=True),
    "a journal with a super-journal of a wrong sum": _super_journal(valid=False),
    "a hot journal": _hot_journal,
}
