"""Rows of a catalog that someone else wrote are data: one that is not of its form is damage, and no path."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore import CheckpointInfo, RetentionPolicy, Store
from ckstore.catalog import Catalog, row_checks, upkeep
from ckstore.catalog.row_checks import TABLES
from ckstore.errors import BadInput, CatalogUnavailable, CkstoreWarning
from ckstore.model.digest import fan_out, is_digest
from ckstore.objects.layout import Layout
from tests.support.coverage import sample_seed
from tests.support.requirements import representatives

STATE = {"w": b"1" * 9000}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "store") as store:
        for step in (1, 2, 3):
            state = {
                "w": bytes([step]) * 9000,
                "small": [np.full(50, i, np.uint8) for i in range(4)],
                "text": "t" * 2000,
            }
            store.save(state, step=step, metrics={"loss": float(step)}, metadata={"of": step})
    return tmp_path / "store"


def change(root: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(root / "catalog.db")) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute(sql, values)
        connection.commit()


def _climbing(victim: Path) -> str:
    """``blobs//`` + this."""
    return f"../../{victim.parent.name}/{victim.name}"


def _absolute(victim: Path) -> str:
    return str(victim)


def _fanned(victim: Path) -> str:
    """``blobs/ab/`` + this."""
    return f"../../../{_moved(victim, 'x-ab')}"


def _fan_climbs(victim: Path) -> str:
    """``blobs/../`` + this."""
    return f"../{_moved(victim, 'x-..')}"


def _moved(victim: Path, name: str) -> str:
    """Have the directory of the victim under a name that gives the fan-out, too."""
    (victim.parent.parent / name).symlink_to(victim.parent)
    (victim.parents[1] / "store" / "blobs" / "ab").mkdir(exist_ok=True)
    return f"{name}/{victim.name}"


@pytest.mark.crossed
@pytest.mark.parametrize("name", [_climbing, _fanned, _absolute, _fan_climbs])
@pytest.mark.parametrize("act", ["gc", "save"])
def test_a_digest_that_is_a_path_frees_nothing(root: Path, victim: Path, name: Callable[[Path], str], act: str) -> None:
    digest = name(victim)
    change(root, "INSERT INTO blobs (id, digest, nbytes) VALUES (999, ?, 9)", digest)
    change(root, "INSERT INTO candidates (blob_id) VALUES (999)")

    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog from [13] checkpoint"):
        use(root, victim, act)


def use(root: Path, victim: Path, act: str) -> None:
    with Store.open(root) as store:
        if act == "gc":
            store.gc()
        else:
            store.config.retention = RetentionPolicy(keep_last=1)
            store.save(STATE, step=4)

    assert victim.read_text() == "not yours"


@given(text=st.one_of(st.text(max_size=40), st.from_regex(r"(xxh3|blake3)-[0-9a-fA-F]{30,66}", fullmatch=True)))
def test_only_a_digest_becomes_the_path_of_a_blob(text: str) -> None:
    layout = Layout(Path("/store"))
    if is_digest(text):
        assert str(layout.blob(text)) == f"/store/blobs/{fan_out(text)}/{text}"
        return
    for make in (layout.blob, fan_out):
        with pytest.raises(BadInput, match="the name of a blob must be a digest"):
            make(text)


def test_the_form_of_every_column_is_known(root: Path) -> None:
    with closing(sqlite3.connect(root / "catalog.db")) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        columns = {
            table: {name for _, name, _, _, _, key in connection.execute(f"PRAGMA table_info({table})") if name != "id"}
            for (table,) in names
            if not table.startswith(("_", "sqlite_"))
        }

    assert {table: set(forms) for table, forms in TABLES.items()} == columns


WRONG: tuple[object, ...] = (
    *("../../victim", "/etc/passwd", "", "{", "[" * 5000, '{"a": []}', "[-1]", "\x00"),
    *(-1, 2**62, 0.5, b"\xff", None),
)
COLUMNS = [(table, column) for table, columns in TABLES.items() for column in columns]


@pytest.mark.parametrize("table, column", representatives(COLUMNS, *COLUMNS[(sample_seed() or 0) % 6 :: 6]))
def test_a_value_that_is_not_of_its_form_is_damage_wherever_it_stands(root: Path, table: str, column: str) -> None:
    """Each question gets an answer of its form, or says that the catalog is damaged; then the whole test finds it."""
    with Store.open(root) as store:
        store.tag("best", 2)
        found = store.checkpoints()
        digests = [digest for digest, _ in store._context.catalog.blobs_of([found[0].key])[found[0].key]]
    change(root, "INSERT OR IGNORE INTO candidates SELECT id FROM blobs WHERE id = 2")
    change(root, "DELETE FROM uses WHERE blob_id = 2")
    with closing(sqlite3.connect(root / "catalog.db")) as connection:
        digests += [piece for (piece,) in connection.execute("SELECT digest FROM pieces").fetchall()]
    before = (root / "catalog.db").read_bytes()
    said = 0
    for wrong in WRONG:
        (root / "catalog.db").write_bytes(before)
        if not forge(root, table, column, wrong):
            continue
        catalog = Catalog(root)
        problems = [problem for ask in questions(catalog, found, digests) if (problem := refusal(ask))]
        said += bool(problems)

        assert {error.why for error in problems} <= {"damaged"}
        assert not problems or upkeep.problems(catalog.path, thorough=True)

    assert said or (table, column) in UNASKED


UNASKED = {
    *(("checkpoints", "writer"), ("pieces", "digest"), ("pieces", "sequence")),
    *(("uses", "checkpoint_id"), ("uses", "blob_id")),
    *(("candidates", "blob_id"), ("pieces", "blob_id"), ("readings", "blob_id"), ("checkpoints", "checksum")),
}
"""What no question returns: it joins rows, is only compared, or is for people."""


def forge(root: Path, table: str, column: str, wrong: object) -> bool:
    """Put a value into each row of a column, whatever its type is; False: no file can hold it there."""
    with closing(sqlite3.connect(root / "catalog.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        ((sql,),) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
        loose = sql.replace(" INTEGER NOT NULL", " ANY").replace(" INTEGER,", " ANY,").replace(" TEXT NOT NULL", " ANY")
        set_schema(connection, loose, table)
    try:
        forge_rows(root, table, column, wrong)
    except sqlite3.IntegrityError:
        return False
    with closing(sqlite3.connect(root / "catalog.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        set_schema(connection, sql, table)
    return True


def forge_rows(root: Path, table: str, column: str, wrong: object) -> None:
    try:
        change(root, f"UPDATE {table} SET {column} = ?", wrong)
    except sqlite3.IntegrityError:  # the values of the column differ: then one of them
        change(root, f"UPDATE {table} SET {column} = ? WHERE {column} = (SELECT max({column}) FROM {table})", wrong)
    if table == "checkpoints" and column != "checksum":  # else the row would be left out before its form is looked at
        with closing(sqlite3.connect(root / "catalog.db", isolation_level=None)) as connection:
            row_checks.install(connection)
            connection.execute(f"UPDATE checkpoints SET checksum = {row_checks.CHECKSUM}")


def set_schema(connection: sqlite3.Connection, sql: str, table: str) -> None:
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = ?", (sql, table))


def questions(catalog: Catalog, found: list[CheckpointInfo], digests: list[str]) -> list[Callable[[], object]]:
    places = [info.key for info in found]
    return [
        catalog.owner,
        catalog.listing,
        lambda: catalog.listing(places=places),
        catalog.counts,
        lambda: catalog.chosen("main", newest=2, off_every=2),
        catalog.infos,
        lambda: catalog.current(catalog.listing()),
        catalog.count_and_sequence,
        lambda: catalog.find_pieces(digests)[0],
        lambda: catalog.best_shares(digests),
        lambda: catalog.blobs_of(places[:1]),
        lambda: catalog.places_of_id(found[0].id),
        lambda: catalog.readings(digests),
        lambda: catalog.readings_of_newest("main"),
        lambda: catalog.oldest_reading(None, now_ns=2**62),
        catalog.pack_uses,
        catalog.unused,
        lambda: catalog.without_use(digests),
        catalog.dead_pack_bytes,
        catalog.outline,
    ]


def refusal(ask: Callable[[], object]) -> CatalogUnavailable | None:
    try:
        ask()
    except CatalogUnavailable as error:
        return error
    return None
