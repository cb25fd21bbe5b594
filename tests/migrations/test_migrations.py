"""Steps are only added, run in the transaction that they are given, and need nothing of ckstore."""

import ast
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

import ckstore_migrations
from ckstore.catalog import Catalog
from ckstore_migrations import STEPS, VERSION, apply, migrations, schema
from tests.catalog.manifests import Directories, at, chunk_of, new_catalog, piece_of, published

FOLDER = Path(ckstore_migrations.__file__).parent


def test_every_step_has_a_module_of_its_name_and_is_listed_in_order() -> None:
    modules = sorted(path.stem for path in FOLDER.glob("m[0-9]*.py"))

    assert [step.__name__ for step in STEPS] == modules
    assert [int(name[1:5]) for name in modules] == list(range(schema.FIRST, VERSION + 1))


def test_the_digests_are_those_of_what_the_steps_make() -> None:
    assert tuple(schema.digests()) == schema.DIGESTS, "python -m ckstore_migrations.schema prints the right ones"


def test_a_version_of_sqlite_utils_that_writes_other_statements_changes_no_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    for name in ("create_view", "create_table"):
        monkeypatch.setattr(Database, name, refuse)

    assert tuple(schema.digests()) == schema.DIGESTS


def test_the_steps_import_nothing_of_ckstore() -> None:
    imported: set[str] = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])

    assert "ckstore" not in imported
    assert {"ckstore_migrations", "sqlite_utils"} <= imported


def test_all_steps_run_inside_one_transaction_of_the_caller() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        apply(Database(connection, execute_plugins=False))

        still_inside = connection.in_transaction
        connection.execute("ROLLBACK")

        assert still_inside
        assert connection.execute("SELECT * FROM sqlite_schema").fetchall() == []


def test_applying_twice_is_applying_once() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        database = Database(connection, execute_plugins=False)
        apply(database)
        before = database.schema
        apply(database)

        assert database.schema == before
        assert [step.name for step in migrations().applied(database)] == [step.__name__ for step in STEPS]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = new_catalog(tmp_path)
    directories = Directories(tags={"best": at("main", 2), "late": at("main", 2)})
    directories.put(
        published("main", 1, sequence=1, pieces=[(0, 0)], chunks=[1]),
        published("main", 2, sequence=2, pieces=[(0, 0), (0, 1)], texts={"note": 5}),
        published("side", 1, sequence=3, chunks=[2]),
    )
    directories.catalogue(made)
    del directories.there[at("side", 1)]
    directories.catalogue(made)
    return made


def test_every_table_is_strict(catalog: Catalog) -> None:
    with closing(sqlite3.connect(catalog.path)) as connection:
        tables = connection.execute("PRAGMA table_list").fetchall()

    ours = {name: strict for _, name, kind, _, _, strict in tables if kind == "table" and name[0] not in "_s"}
    assert set(ours.values()) == {1}
    assert len(ours) >= 7


def test_the_views_answer_what_people_ask(catalog: Catalog) -> None:
    def ask(query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(catalog.path)) as connection:
            return connection.execute(query).fetchall()

    assert ask("SELECT run, step, tags, logical_bytes FROM checkpoint_log") == [
        ("main", 2, "best late", 261),
        ("main", 1, None, 1129),
    ]
    assert ask("SELECT run, checkpoint_count, first_step, last_step, logical_bytes FROM run_summary") == [
        ("main", 2, 1, 2, 1390)
    ]
    assert ask("SELECT digest, nbytes FROM unused_blobs") == [(chunk_of(2), 1002)]
    assert ask("SELECT reference_count FROM blob_references WHERE is_pack") == [(2,)]
    assert ask("SELECT best_used_bytes, best_share FROM pack_shares") == [(256, 0.5)]
    assert ask("SELECT step, used_bytes FROM checkpoint_blobs WHERE is_pack ORDER BY step") == [(1, 128), (2, 256)]


def test_lookups_that_saves_and_gc_make_use_indexes(catalog: Catalog) -> None:
    """The cost of a question must not grow with the number of checkpoints: no table is scanned for it."""
    questions = [
        ("SELECT id FROM checkpoints WHERE run = ? AND step = ?", ("main", 1)),
        ("SELECT id FROM checkpoints WHERE run = ? AND directory = ?", at("main", 1)[::2]),
        ("SELECT max(sequence) FROM checkpoints", ()),
        ("SELECT blob_id FROM pieces WHERE digest IN (?, ?)", (piece_of(0, 0), piece_of(0, 1))),
        ("SELECT max(u.used_bytes) FROM blobs b JOIN uses u ON u.blob_id = b.id WHERE b.digest IN (?)", ("x",)),
        ("DELETE FROM checkpoints WHERE id = ?", (1,)),
        ("DELETE FROM blobs WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM uses WHERE blob_id = blobs.id)", ("x",)),
        ("DELETE FROM pieces WHERE blob_id = ?", (1,)),
    ]
    with closing(sqlite3.connect(catalog.path)) as connection:
        for query, values in questions:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()]

            assert plan
            assert not [line for line in plan if line.startswith("SCAN")], (query, plan)
