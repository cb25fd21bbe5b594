"""A catalog with any other schema than ckstore makes is not read: it could run for ever, or run what someone wrote."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.catalog import Catalog, connection
from ckstore.catalog.connection import BoundedConnection
from ckstore.errors import CatalogUnavailable, CkstoreWarning

EVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"

SCHEMAS = {
    "a view in the place of a table": (
        "ALTER TABLE checkpoints RENAME TO c",
        "DROP TABLE c",
        f"CREATE VIEW checkpoints AS {EVER} i AS id, 'main' AS run, i AS step, i AS dir_inode, i AS sequence FROM n",
    ),
    "a view that never ends": ("DROP VIEW run_summary", f"CREATE VIEW run_summary AS {EVER} i FROM n"),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON blobs BEGIN INSERT INTO candidates VALUES (1); END",),
    "a generated column": ("ALTER TABLE blobs ADD COLUMN more TEXT AS (hex(zeroblob(1000000)))",),
    "a column more": ("ALTER TABLE blobs ADD COLUMN more INTEGER",),
    "an index of an expression": ("CREATE INDEX more ON blobs (hex(nbytes))",),
    "an index less": ("DROP INDEX pieces_by_blob",),
    "a table more": ("CREATE TABLE more (a)",),
    "a table less": ("DROP TABLE candidates",),
    "a virtual table": ("DROP TABLE tags", "CREATE VIRTUAL TABLE tags USING fts5(name, run, step)"),
    "statistics of the planner": ("ANALYZE",),
    "a check that is another": (
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'id = 1', 'id < 9') WHERE name = 'store'",
    ),
    "a space more": (
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'id = 1', 'id  = 1') WHERE name = 'store'",
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "store") as store:
        for step in (1, 2, 3):
            store.save({"w": bytes([step]) * 9000}, step=step)
    return tmp_path / "store"


@pytest.mark.parametrize("how", SCHEMAS)
def test_a_catalog_of_another_schema_is_not_read_and_rebuilt(root: Path, how: str) -> None:
    with closing(sqlite3.connect(root / "catalog.db", isolation_level=None)) as opened:
        for statement in SCHEMAS[how]:
            opened.execute(statement)

    with pytest.raises(CatalogUnavailable, match="has tables, views or indexes that differ") as caught:
        Catalog(root).infos()
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog from 3 checkpoints"), Store.open(root) as store:
        listed = [info.step for info in store.checkpoints()]

    assert caught.value.why == "damaged"
    assert listed == [1, 2, 3]
    assert [info.step for info in Catalog(root).infos()] == [1, 2, 3]


def test_a_connection_takes_no_second_database_and_no_statement_without_end(root: Path) -> None:
    with connection.reading(root / "catalog.db") as opened:
        with pytest.raises(sqlite3.OperationalError, match="too many attached databases"):
            opened.execute("ATTACH ? AS more", (str(root / "more.db"),))
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            opened.execute(f"{EVER} max(i) FROM n").fetchall()

    assert not (root / "more.db").exists()


def test_a_statement_that_takes_too_many_steps_or_gives_too_many_rows_is_damage(root: Path) -> None:
    def ask(query: str) -> CatalogUnavailable:
        with pytest.raises(CatalogUnavailable) as caught, connection.reading(root / "catalog.db") as opened:
            opened.execute(query).fetchall()
        return caught.value

    asked = [ask(f"{EVER} max(i) FROM n"), ask(f"{EVER} i FROM n"), ask("SELECT zeroblob(100000000)")]

    assert [error.why for error in asked] == ["damaged"] * 3
    assert "takes more steps than it would in an intact catalog" in str(asked[0])
    assert "wanted no more rows and text than the file can hold" in str(asked[1])
    assert "wanted no more rows and text than the file can hold" in str(asked[2])


def test_rows_that_are_written_are_counted_as_they_come() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=BoundedConnection)) as opened:
        opened.bound(0)
        opened.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
        many = [(i, "x" * 20) for i in range(100_000)]
        for start in itertools.count(0, 10_000):
            part = many[start : start + 10_000]
            if not part:
                break
            opened.renew(len(part))
            opened.executemany("INSERT INTO t VALUES (?, ?)", part)

        assert opened.execute("SELECT count(*) FROM t").fetchall() == [(100_000,)]
