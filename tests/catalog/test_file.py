"""The file of the catalog: made once by the first to come, refused when newer, left aside when damaged."""

import contextlib
import errno
import multiprocessing
import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from ckstore.catalog import Catalog, connection, row_checks
from ckstore.errors import CatalogUnavailable, InUse, NewerFormat
from ckstore.fs import links
from ckstore.fs.locks import lock_exclusive
from ckstore.model.manifest.info import Published
from ckstore_migrations import APPLICATION_ID, VERSION
from tests.catalog.manifests import SOON_S, Directories, Key, at, chunk_of, new_catalog, published
from tests.faults.migrating import become_next
from tests.support.meanwhile import elsewhere
from tests.support.requirements import require_root

_SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return new_catalog(tmp_path / "store")


def filled(root: Path, steps: int = 50) -> Catalog:
    made = new_catalog(root)
    directories = Directories()
    for step in range(steps):
        directories.put(published("main", step, sequence=step + 1, chunks=range(step, step + 20)))
    directories.catalogue(made)
    return made


def header(path: Path) -> tuple[int, int, str]:
    with closing(sqlite3.connect(path)) as opened:
        application, version, journal = (
            opened.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "journal_mode")
        )
    return application, version, journal


def why(catalog: Catalog) -> str:
    with pytest.raises(CatalogUnavailable) as caught:
        catalog.listing()
    return caught.value.why


# ------------------------------------------------------------------------------------------ to make


def test_a_new_catalog_is_private_current_and_empty(catalog: Catalog) -> None:
    assert header(catalog.path) == (APPLICATION_ID, VERSION, "wal")
    assert stat.S_IMODE(catalog.path.stat().st_mode) == 0o600
    assert catalog.infos() == []
    assert catalog.count_and_sequence() == (0, 0)
    assert catalog.counts() == {}
    assert catalog.check() == []


def test_making_it_again_changes_nothing_and_needs_no_lock(catalog: Catalog) -> None:
    with lock_exclusive(catalog.path.parent, timeout_s=0):
        catalog.create_or_migrate(timeout_s=0)


def _make(root: Path, barrier: Barrier, step: int) -> None:
    barrier.wait(60)
    made = Catalog(root)
    made.create_or_migrate(timeout_s=30)
    made.reconcile([at("main", step)], lambda key: published(*key, chunks=[key.step]), timeout_s=30)


def test_two_processes_that_make_it_at_once_both_succeed(tmp_path: Path) -> None:
    for attempt in range(3):
        root = tmp_path / f"store{attempt}"
        root.mkdir()
        barrier = _SPAWN.Barrier(2)
        makers = [_SPAWN.Process(target=_make, args=(root, barrier, step)) for step in range(2)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join(60)

        assert [maker.exitcode for maker in makers] == [0, 0]
        assert Catalog(root).listing().keys() == {at("main", 0), at("main", 1)}
        assert Catalog(root).check() == []


@pytest.mark.parametrize("left", ["empty", "half"])
def test_what_a_maker_who_died_left_is_completed(tmp_path: Path, left: str) -> None:
    path = tmp_path / "catalog.db"
    path.touch()
    if left == "half":
        with closing(sqlite3.connect(path, isolation_level=None)) as opened:
            opened.execute("PRAGMA journal_mode=WAL")
    catalog = Catalog(tmp_path)
    before = why(catalog)

    catalog.create_or_migrate(timeout_s=SOON_S)

    assert before == "missing"
    assert catalog.check() == []


def test_a_log_left_of_a_removed_catalog_is_not_played_into_the_new_one(tmp_path: Path) -> None:
    old = filled(tmp_path)
    with closing(sqlite3.connect(old.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM checkpoints LIMIT 1").fetchall()  # so that the WAL cannot be truncated
        old.note_blobs_listed("test", timeout_s=SOON_S)
        assert Path(f"{old.path}-wal").stat().st_size > 0
        old.path.unlink()

        old.create_or_migrate(timeout_s=SOON_S)

    assert old.listing() == {}
    assert old.outline().blobs_listed == ""
    assert old.check() == []
    assert Path(f"{old.path}.old-1-wal").exists()


def test_a_journal_left_of_a_removed_catalog_is_not_played_into_the_new_one(tmp_path: Path) -> None:
    old = filled(tmp_path)
    with closing(sqlite3.connect(old.path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=TRUNCATE").fetchall()
        writer.execute("PRAGMA cache_size=0")  # so that what is changed goes to the file before the commit
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO blobs (digest, nbytes) VALUES (?, 1)", [(f"{n:04000d}",) for n in range(50)])
        left = Path(f"{old.path}-journal").read_bytes()
        writer.execute("ROLLBACK")
    old.path.unlink()
    Path(f"{old.path}-journal").write_bytes(left)

    old.create_or_migrate(timeout_s=SOON_S)

    assert len(left) > 4096
    assert old.listing() == {}
    assert old.check() == []
    assert Path(f"{old.path}.old-1-journal").read_bytes() == left


def test_a_damaged_file_that_gives_a_checkpoint_twice_is_told_to_be_damaged(tmp_path: Path) -> None:
    # A row that is changed leaves itself in the place that the index has for the old value; this one has a checksum.
    catalog = filled(tmp_path, steps=3)
    unique = "type = 'index' AND name = 'sqlite_autoindex_checkpoints_1'"
    with closing(sqlite3.connect(catalog.path, isolation_level=None)) as opened:
        ((sql,),) = opened.execute("SELECT sql FROM sqlite_schema WHERE name = 'checkpoints'").fetchall()
        (index,) = opened.execute(f"SELECT * FROM sqlite_schema WHERE {unique}").fetchall()
        opened.execute("PRAGMA writable_schema=ON")
        opened.execute(f"DELETE FROM sqlite_schema WHERE {unique}")
        loose = sql.replace("UNIQUE (run, directory)", "CHECK (id > 0)")
        opened.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'checkpoints'", (loose,))
    with closing(sqlite3.connect(catalog.path, isolation_level=None)) as opened:
        row_checks.install(opened)
        opened.execute("UPDATE checkpoints SET directory = '1.0000000000', step = 1 WHERE step = 2")
        opened.execute(f"UPDATE checkpoints SET checksum = {row_checks.CHECKSUM}")
        opened.execute("PRAGMA writable_schema=ON")
        opened.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", index)
        opened.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'checkpoints'", (sql,))

    with pytest.raises(CatalogUnavailable, match="has two rows of one checkpoint") as caught:
        catalog.infos()
    assert caught.value.why == "damaged"


def test_a_catalog_may_lie_elsewhere_and_is_locked_there(tmp_path: Path) -> None:
    for name in ("store", "cache"):
        (tmp_path / name).mkdir()
    catalog = Catalog(tmp_path / "store", tmp_path / "cache" / "index of it?.db")

    with lock_exclusive(tmp_path / "store", timeout_s=0):
        catalog.create_or_migrate(timeout_s=0)
        catalog.note_blobs_listed("test", timeout_s=0)

    assert os.listdir(tmp_path / "store") == []
    assert catalog.outline().blobs_listed == "test"


def test_without_shared_mappings_it_falls_back_to_a_rollback_journal(tmp_path: Path) -> None:
    with closing(sqlite3.connect(f"file:{tmp_path}/x.db?vfs=unix-dotfile", uri=True, isolation_level=None)) as opened:
        connection.set_journal(opened, may_map=True)

        assert opened.execute("PRAGMA journal_mode").fetchall() == [("truncate",)]
        assert opened.execute("PRAGMA synchronous").fetchall() == [(3,)]


def test_a_commit_is_synchronous_and_leaves_no_log_behind(catalog: Catalog) -> None:
    with connection.writing(catalog.path, timeout_s=SOON_S) as opened:
        settings = {
            name: opened.execute(f"PRAGMA {name}").fetchall()[0][0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "trusted_schema", "wal_autocheckpoint")
        }
        opened.execute("INSERT INTO tags (name, run, step, directory) VALUES ('best', 'main', 1, '1')")

    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "wal_autocheckpoint": 0,
    }
    assert os.listdir(catalog.path.parent) == ["catalog.db"]


# ------------------------------------------------------------------------------------ newer, behind


def test_a_newer_catalog_is_left_aside_by_readers_and_refused_to_writers(catalog: Catalog) -> None:
    with closing(sqlite3.connect(catalog.path)) as opened:
        opened.execute(f"PRAGMA user_version={VERSION + 1}")
    before = catalog.path.read_bytes()

    assert why(catalog) == "newer"
    writes: list[Callable[[], object]] = [
        lambda: catalog.create_or_migrate(timeout_s=SOON_S),
        lambda: catalog.note_blobs_listed("test", timeout_s=SOON_S),
    ]
    for write in writes:
        with pytest.raises(
            NewerFormat, match=(f"schema version {VERSION + 1}; this ckstore knows versions up to {VERSION}")
        ):
            write()
    assert catalog.path.read_bytes() == before


def test_a_catalog_that_is_behind_is_left_aside_until_it_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = filled(tmp_path)
    before = catalog.listing()
    become_next(monkeypatch.setattr)

    assert why(catalog) == "behind"
    with pytest.raises(CatalogUnavailable, match=f"has schema version {VERSION}"):
        catalog.note_blobs_listed("test", timeout_s=SOON_S)
    catalog.create_or_migrate(timeout_s=SOON_S)

    assert catalog.listing() == before
    assert catalog.check() == []


def test_a_catalog_that_only_says_that_it_is_older_is_damaged(tmp_path: Path) -> None:
    catalog = filled(tmp_path)
    with closing(sqlite3.connect(catalog.path)) as opened:
        opened.execute(f"PRAGMA user_version={VERSION - 1}")

    assert why(catalog) == "damaged"
    with pytest.raises(CatalogUnavailable, match=f"does not have the schema of version {VERSION - 1}") as caught:
        catalog.create_or_migrate(timeout_s=SOON_S)
    assert caught.value.why == "damaged"


# ------------------------------------------------------------------------------------------ damaged


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def _torn(path: Path) -> None:
    pages = bytearray(path.read_bytes())
    for start in range(4096, len(pages), 4096):
        pages[start : start + 64] = os.urandom(64)
    path.write_bytes(pages)


def _shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("CREATE TABLE recipes (cake TEXT)")


def _without_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("DROP TABLE checkpoints")


@pytest.mark.parametrize("harm", [_garbage, _torn, _shortened, _foreign, _without_a_table])
def test_a_damaged_catalog_is_left_aside_and_rebuilt(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    catalog = filled(tmp_path)
    harm(catalog.path)
    harmed = catalog.path.read_bytes()

    assert why(catalog) == "damaged"
    assert catalog.check() != []
    with pytest.raises(CatalogUnavailable):
        catalog.reconcile([at("main", 3)], lambda *_: None, timeout_s=SOON_S)
    aside = catalog.set_aside(timeout_s=SOON_S)
    catalog.create_or_migrate(timeout_s=SOON_S)

    assert aside == tmp_path / "catalog.db.damaged-1"
    assert aside.read_bytes() == harmed
    assert catalog.listing() == {}
    assert catalog.check() == []


def test_a_text_that_is_no_utf_8_is_damage(tmp_path: Path) -> None:
    catalog = filled(tmp_path)
    with closing(sqlite3.connect(catalog.path)) as opened:
        opened.execute("UPDATE checkpoints SET run = CAST(x'6da0' AS TEXT)")
        opened.commit()

    assert why(catalog) == "damaged"
    assert catalog.set_aside(timeout_s=SOON_S) == tmp_path / "catalog.db.damaged-1"
    catalog.create_or_migrate(timeout_s=SOON_S)
    assert catalog.listing() == {}


def test_rows_without_their_partner_are_damage(tmp_path: Path) -> None:
    catalog = filled(tmp_path)
    with closing(sqlite3.connect(catalog.path)) as opened:
        opened.execute("DELETE FROM blobs WHERE id % 2")
        opened.commit()

    assert catalog.check() == [f"{catalog.path}: rows of uses without blobs"]
    assert catalog.set_aside(timeout_s=SOON_S) is not None


def test_columns_that_should_be_json_and_are_not_are_damage(tmp_path: Path) -> None:
    catalog = filled(tmp_path)
    with closing(sqlite3.connect(catalog.path)) as opened:
        row_checks.install(opened)
        opened.execute("UPDATE checkpoints SET metrics = '{'")
        opened.execute(f"UPDATE checkpoints SET checksum = {row_checks.CHECKSUM}")
        opened.commit()

    with pytest.raises(CatalogUnavailable, match="metrics: wanted JSON") as caught:
        catalog.infos()
    assert caught.value.why == "damaged"


def test_a_good_catalog_is_not_set_aside(tmp_path: Path) -> None:
    catalog = filled(tmp_path)

    kept = catalog.set_aside(timeout_s=SOON_S)

    assert kept is None
    assert len(catalog.listing()) == 50


def test_a_catalog_is_replaced_by_an_empty_one_whatever_it_is(tmp_path: Path) -> None:
    catalog = filled(tmp_path)

    replaced = [catalog.replace(timeout_s=SOON_S)]
    catalog.path.write_bytes(b"not a database")
    replaced.append(catalog.replace(timeout_s=SOON_S))
    catalog.path.unlink()
    replaced.append(catalog.replace(timeout_s=SOON_S))

    assert replaced == [tmp_path / "catalog.db.old-1", tmp_path / "catalog.db.old-2", None]
    assert catalog.listing() == {}
    assert catalog.check() == []


def test_of_the_catalogs_that_were_set_aside_the_three_newest_stay(tmp_path: Path) -> None:
    catalog = filled(tmp_path, steps=1)
    for number in range(5):
        catalog.path.write_bytes(b"damaged %d" % number)
        assert catalog.set_aside(timeout_s=SOON_S) == tmp_path / f"catalog.db.damaged-{number + 1}"

    kept = {path.name: path.read_bytes() for path in tmp_path.glob("catalog.db*")}

    assert kept == {f"catalog.db.damaged-{number + 1}": b"damaged %d" % number for number in (2, 3, 4)}


def test_what_cannot_be_unlinked_as_a_file_is_set_aside_and_stays(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    for _ in range(5):
        catalog.path.mkdir()
        catalog.replace(timeout_s=SOON_S)
        catalog.path.unlink()

    assert len(list(tmp_path.glob("catalog.db.old-?"))) == 5


def test_a_reader_of_a_catalog_that_is_replaced_meanwhile_does_not_believe_it(tmp_path: Path) -> None:
    catalog = filled(tmp_path)

    def read() -> None:
        with connection.reading(catalog.path) as opened:
            assert catalog.replace(timeout_s=SOON_S) is not None
            assert opened.execute("SELECT count(*) FROM checkpoints").fetchall() == [(50,)]

    with pytest.raises(CatalogUnavailable, match="was replaced while it was open") as caught:
        read()
    assert caught.value.why == "unreadable"
    assert catalog.listing() == {}


def test_a_death_while_it_is_set_aside_leaves_no_database_without_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = filled(tmp_path)
    with closing(sqlite3.connect(catalog.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM checkpoints LIMIT 1").fetchall()
        catalog.note_blobs_listed("late", timeout_s=SOON_S)
        names: list[str] = []
        rename = links.rename

        def dies_at_the_second(source: str, target: str) -> None:
            names.append(Path(source).name)
            if len(names) == 2:
                raise OSError(5, "Input/output error")
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(links, "rename", dies_at_the_second)
            with pytest.raises(CatalogUnavailable, match="cannot be set aside: Input/output error"):
                catalog.replace(timeout_s=SOON_S)

        assert names[0] == "catalog.db"
        catalog.create_or_migrate(timeout_s=SOON_S)
    assert catalog.listing() == {}
    assert catalog.outline().blobs_listed == ""


def test_a_catalog_set_aside_takes_its_log_along(tmp_path: Path) -> None:
    catalog = filled(tmp_path)
    with closing(sqlite3.connect(catalog.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM checkpoints LIMIT 1").fetchall()
        catalog.note_blobs_listed("late", timeout_s=SOON_S)
        aside = catalog.replace(timeout_s=SOON_S)

        assert aside is not None
        with closing(sqlite3.connect(aside)) as opened:
            assert opened.execute("SELECT blobs_listed FROM store").fetchall() == [("late",)]
    assert catalog.outline().blobs_listed == ""


# --------------------------------------------------------------------------------------- unreadable


def test_a_missing_catalog_is_not_made_by_reading_or_writing_rows(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)

    assert why(catalog) == "missing"
    with pytest.raises(CatalogUnavailable, match="is missing"):
        catalog.note_blobs_listed("test", timeout_s=SOON_S)
    assert catalog.check() == [f"the catalog {catalog.path} is missing"]
    assert os.listdir(tmp_path) == [".home"]


def test_a_missing_store_is_unavailable(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "nowhere")

    assert why(catalog) == "missing"
    with pytest.raises(CatalogUnavailable, match="cannot be locked: No such file"):
        catalog.create_or_migrate(timeout_s=SOON_S)


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory"])
def test_what_is_not_a_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "catalog.db"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(new_catalog(tmp_path / "other").path)
    catalog = Catalog(path.parent)

    assert why(catalog) == "damaged"
    with pytest.raises(CatalogUnavailable, match="not a regular file"):
        catalog.create_or_migrate(timeout_s=SOON_S)
    assert catalog.set_aside(timeout_s=SOON_S) == tmp_path / "store" / "catalog.db.damaged-1"


def test_a_catalog_replaced_while_it_is_opened_is_left_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = filled(tmp_path / "store")
    other = new_catalog(tmp_path / "other")
    connect = sqlite3.connect

    def slow_connect(address: str, **options: Any) -> sqlite3.Connection:
        opened: sqlite3.Connection = connect(address, **options)
        os.replace(other.path, catalog.path)
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", slow_connect)

        assert why(catalog) == "unreadable"
    assert catalog.listing() == {}


@pytest.mark.parametrize("code, why", [(errno.ENOENT, "missing"), (errno.EIO, "unreadable")])
def test_a_catalog_that_goes_between_two_looks_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, why: str
) -> None:
    made = filled(tmp_path / "store")

    def going(*_: object) -> os.statvfs_result:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", going)
        with pytest.raises(CatalogUnavailable) as caught:
            made.listing()
    assert caught.value.why == why
    assert len(made.listing()) == 50


def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    catalog = filled(tmp_path)

    def fill() -> None:
        with connection.writing(catalog.path, timeout_s=SOON_S) as opened:
            opened.execute("PRAGMA max_page_count=1")
            values = ((f"{n:0100d}",) for n in range(100_000))
            opened.executemany("INSERT INTO blobs (digest, nbytes) VALUES (?, 1)", values)

    with pytest.raises(CatalogUnavailable, match="full") as caught:
        fill()

    assert caught.value.why == "unreadable"
    assert catalog.outline().blobs_listed == ""
    catalog.note_blobs_listed("after", timeout_s=SOON_S)


def _read_without_rights(root: Path) -> None:
    os.setgid(65534)
    os.setuid(65534)
    with contextlib.suppress(CatalogUnavailable):
        Catalog(root).infos()
        sys.exit(3)
    sys.exit(0)


@pytest.mark.root
def test_a_user_who_may_not_read_it_leaves_it_aside(tmp_path: Path) -> None:
    require_root()
    catalog = filled(tmp_path / "store")
    for folder in (tmp_path / "store", tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to(tmp_path.parents[1]):
            folder.chmod(0o755)
    catalog.path.chmod(0o644)  # readable, but SQLite would have to make files beside it
    child = multiprocessing.get_context("fork").Process(target=_read_without_rights, args=(tmp_path / "store",))
    child.start()
    child.join(60)

    assert child.exitcode == 0


# -------------------------------------------------------------------------------------------- locks


def test_a_write_against_a_held_lock_gives_up_in_time(catalog: Catalog) -> None:
    writes: list[Callable[[], object]] = [
        lambda: catalog.reconcile([at("main", 1)], lambda *_: None, timeout_s=0.05),
        lambda: catalog.replace_tags({"a": at("main", 1)}, timeout_s=0.05),
        lambda: catalog.forget([chunk_of(1)], timeout_s=0.05),
        lambda: catalog.add_candidates([(chunk_of(1), 1)], timeout_s=0.05),
        lambda: catalog.note_blobs_listed("test", timeout_s=0.05),
        lambda: catalog.set_aside(timeout_s=0.05),
    ]
    with lock_exclusive(catalog.path.parent, timeout_s=0):
        for write in writes:
            with pytest.raises(InUse, match="locked by another process"):
                elsewhere(write)

        assert catalog.listing() == {}  # reading needs no lock


def test_a_foreign_writer_is_waited_for_and_then_named(catalog: Catalog) -> None:
    with closing(sqlite3.connect(catalog.path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(InUse, match="locked by another program"):
            catalog.note_blobs_listed("test", timeout_s=0.1)

        assert catalog.outline().blobs_listed == ""
        foreign.execute("ROLLBACK")
    catalog.note_blobs_listed("test", timeout_s=SOON_S)


def test_a_commit_that_need_not_be_durable_stays_in_the_log_until_that_is_long(catalog: Catalog) -> None:
    def save(step: int) -> None:
        catalog.reconcile(
            [at("main", step)],
            lambda key: published(*key, sequence=key.step + 1, chunks=range(100 * key.step, 100 * key.step + 100)),
            timeout_s=SOON_S,
            durable=False,
        )

    log = Path(f"{catalog.path}-wal")
    sizes = []
    for step in range(60):
        save(step)
        sizes.append(log.stat().st_size if log.exists() else 0)

    assert sizes[0] > 0
    assert 0 in sizes  # it was emptied into the file
    assert max(sizes) < 2**21
    assert len(catalog.listing()) == 60
    assert catalog.check() == []


def test_what_is_left_in_the_log_is_made_durable_with_the_next_durable_commit(catalog: Catalog) -> None:
    catalog.reconcile([at("main", 1)], lambda key: published(*key, chunks=[1]), timeout_s=SOON_S, durable=False)
    log = Path(f"{catalog.path}-wal")
    assert log.stat().st_size > 0

    catalog.note_blobs_listed("test", timeout_s=SOON_S)

    assert not log.exists()
    assert catalog.listing().keys() == {at("main", 1)}


def test_a_reader_who_stays_neither_stops_writers_nor_delays_them(catalog: Catalog) -> None:
    with closing(sqlite3.connect(catalog.path)) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT count(*) FROM checkpoints").fetchall()
        for step in range(5):
            # A process that waited for the reader would wait so long that the test does not end in time.
            catalog.reconcile([at("main", step)], lambda key: published(*key, chunks=[key.step]), timeout_s=200)

        assert reader.execute("SELECT count(*) FROM checkpoints").fetchall() == before
        assert len(catalog.listing()) == 5


def test_the_log_is_truncated_also_while_others_have_the_catalog_open(catalog: Catalog) -> None:
    with closing(sqlite3.connect(catalog.path)) as idle:
        idle.execute("SELECT count(*) FROM checkpoints").fetchall()

        catalog.note_blobs_listed("test", timeout_s=SOON_S)

        assert Path(f"{catalog.path}-wal").stat().st_size == 0


def test_look_is_called_while_no_other_process_can_write(catalog: Catalog) -> None:
    def look(_: Key) -> None:
        with pytest.raises(InUse):
            catalog.note_blobs_listed("test", timeout_s=0)

    catalog.reconcile([at("main", 1)], look, timeout_s=SOON_S)

    assert catalog.outline().blobs_listed == ""


def _write_steps(root: Path, first: int) -> None:
    def look_at(key: Key) -> Published:
        return published(*key, sequence=key.step + 1, chunks=[key.step, 99])

    for step in range(first, first + 20):
        Catalog(root).reconcile([at("main", step)], look_at, timeout_s=60)


def test_writers_and_readers_in_several_processes_do_not_harm_each_other(catalog: Catalog) -> None:
    writers = [_SPAWN.Process(target=_write_steps, args=(catalog.path.parent, first)) for first in (0, 20)]
    for writer in writers:
        writer.start()
    seen = [0]
    while any(writer.is_alive() for writer in writers):
        seen.append(len(catalog.listing()))
    for writer in writers:
        writer.join(60)

    assert [writer.exitcode for writer in writers] == [0, 0]
    assert seen == sorted(seen)
    assert catalog.listing().keys() == {at("main", step) for step in range(40)}
    uses = catalog.blobs_of([at("main", step) for step in range(40)])
    assert all((chunk_of(99), 1099) in found for found in uses.values())
    assert catalog.check() == []


# --------------------------------------------------------------------------------------------- fork


def _exit_status_of_child(work: Callable[[], object]) -> int:
    """Fork; return 0 if `work()` returned, 1 if it raised `CatalogUnavailable`, else 2."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            work()
            status = 0
        except CatalogUnavailable:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_uses_the_catalog_as_its_parent_does(catalog: Catalog) -> None:
    catalog.note_blobs_listed("parent", timeout_s=SOON_S)

    status = _exit_status_of_child(lambda: catalog.note_blobs_listed("child", timeout_s=SOON_S))

    assert status == 0
    assert catalog.outline().blobs_listed == "child"


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_forked_while_the_catalog_is_open_leaves_it_aside(catalog: Catalog) -> None:
    inside, done = threading.Event(), threading.Event()

    def look(_: Key) -> None:
        inside.set()
        done.wait(60)

    writer = threading.Thread(target=catalog.reconcile, args=([at("main", 1)], look), kwargs={"timeout_s": SOON_S})
    writer.start()
    inside.wait(60)
    reading = _exit_status_of_child(catalog.listing)
    writing = _exit_status_of_child(lambda: catalog.note_blobs_listed("child", timeout_s=0))
    done.set()
    writer.join(60)

    assert (reading, writing) == (1, 2)  # the flock is the parent's, so the child does not get that far
    catalog.note_blobs_listed("parent", timeout_s=SOON_S)
    assert catalog.outline().blobs_listed == "parent"


# ------------------------------------------------------------------------------------------- others


def test_reading_imports_neither_torch_nor_sqlite_utils_and_errors_not_even_sqlite() -> None:
    program = """
import sys
import ckstore.catalog
from ckstore.errors import CatalogUnavailable
from ckstore.catalog.queries import PieceLocation
assert "sqlite3" not in sys.modules
from pathlib import Path
from ckstore.catalog import Catalog
try:
    Catalog(Path("/nowhere")).infos()
except CatalogUnavailable as error:
    print(error.why)
found = {"torch", "numpy", "sqlite_utils", "hashlib", "ctypes"} & set(sys.modules)
assert not found, found
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False, timeout=60
    )

    assert (ran.stdout, ran.stderr) == ("missing\n", "")


def test_a_copied_store_has_a_catalog_that_opens(tmp_path: Path) -> None:
    catalog = filled(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")

    assert Catalog(tmp_path / "copy").listing() == catalog.listing()


def test_an_unknown_name_of_the_room_is_an_attribute_error() -> None:
    import ckstore.catalog as room

    with pytest.raises(AttributeError, match="no attribute 'Catalogue'"):
        room.Catalogue  # noqa: B018


def test_errors_survive_pickling() -> None:
    error = CatalogUnavailable("it is gone", why="missing", hint="make it")
    again = pickle.loads(pickle.dumps(error))

    assert (again.message, again.why, again.hint) == ("it is gone", "missing", "make it")
