"""What lies beside the catalog is SQLite's to play back, roll back and delete: it meets only what ckstore leaves."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.catalog import Catalog, connection
from ckstore.errors import CatalogUnavailable, CkstoreWarning
from tests.support.requirements import require_root

MAGIC = bytes.fromhex("d9d505f920a163d7")
SECTOR_BYTES = 512
PAGE_BYTES = 4096


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "store") as store:
        for step in (1, 2, 3):
            store.save({"w": bytes([step]) * 9000}, step=step)
    return tmp_path / "store"


def super_journal(victim: Path) -> bytes:
    """Return the end of a journal that names its super-journal. Source: pager.c, writeSuperJournal."""
    name = os.fsencode(victim)
    page_of_lock = 2**30 // PAGE_BYTES + 1
    numbers = [number.to_bytes(4, "big") for number in (page_of_lock, len(name), sum(name))]
    return numbers[0] + name + numbers[1] + numbers[2] + MAGIC


def journal(root: Path, records: bytes = b"", count: int = 0) -> bytes:
    """Return a journal that is hot: the next process that opens the database rolls it back."""
    pages = (root / "catalog.db").stat().st_size // PAGE_BYTES
    numbers = (count, 0, pages, SECTOR_BYTES, PAGE_BYTES)
    return (MAGIC + b"".join(number.to_bytes(4, "big") for number in numbers)).ljust(SECTOR_BYTES, b"\0") + records


def names_a_file_outside(root: Path, victim: Path) -> None:
    (root / "catalog.db-journal").write_bytes(journal(root) + super_journal(victim))


def names_a_file_outside_a_database_without_log(root: Path, victim: Path) -> None:
    with closing(sqlite3.connect(root / "catalog.db", isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode=DELETE").fetchall()
    names_a_file_outside(root, victim)


def is_beside_a_database_with_a_log(root: Path, victim: Path) -> None:
    (root / "catalog.db-journal").write_bytes(journal(root))
    del victim


def is_a_symlink(root: Path, victim: Path) -> None:
    (root / "catalog.db-journal").symlink_to(victim)


def is_a_hardlink(root: Path, victim: Path) -> None:
    (root / "catalog.db-journal").hardlink_to(victim)


def without(root: Path, name: str) -> Path:
    """Return the path of a file beside the database, which a save may have left."""
    (root / name).unlink(missing_ok=True)
    return root / name


def log_is_a_hardlink(root: Path, victim: Path) -> None:
    without(root, "catalog.db-wal").hardlink_to(victim)


def log_is_a_symlink(root: Path, victim: Path) -> None:
    without(root, "catalog.db-wal").symlink_to(victim)


def map_is_a_hardlink(root: Path, victim: Path) -> None:
    without(root, "catalog.db-shm").hardlink_to(victim)


def map_is_a_pipe(root: Path, victim: Path) -> None:
    os.mkfifo(without(root, "catalog.db-shm"))
    del victim


def log_is_a_directory(root: Path, victim: Path) -> None:
    without(root, "catalog.db-wal").mkdir()
    del victim


def database_is_a_hardlink(root: Path, victim: Path) -> None:
    victim.write_bytes((root / "catalog.db").read_bytes())
    (root / "catalog.db").unlink()
    (root / "catalog.db").hardlink_to(victim)


def database_is_a_symlink(root: Path, victim: Path) -> None:
    (root / "catalog.db").rename(victim)
    (root / "catalog.db").symlink_to(victim)


def all_may_write_to_the_database(root: Path, victim: Path) -> None:
    (root / "catalog.db").chmod(0o666)
    del victim


def another_owns_the_log(root: Path, victim: Path) -> None:
    (root / "catalog.db-wal").touch()
    os.chown(root / "catalog.db-wal", 4242, 4242)
    del victim


SETS = [
    names_a_file_outside,
    names_a_file_outside_a_database_without_log,
    is_beside_a_database_with_a_log,
    is_a_symlink,
    is_a_hardlink,
    log_is_a_hardlink,
    log_is_a_symlink,
    log_is_a_directory,
    map_is_a_hardlink,
    map_is_a_pipe,
    database_is_a_hardlink,
    database_is_a_symlink,
    all_may_write_to_the_database,
    another_owns_the_log,
]
BY_ROOT = {another_owns_the_log}


def read(root: Path) -> None:
    with Store.open(root, readonly=True) as store:
        assert [info.step for info in store.checkpoints()] == [1, 2, 3]
        store.verify()


def write(root: Path) -> None:
    with Store.open(root) as store:
        store.tag("best", 2)
        store.verify()
        store.gc()


@pytest.mark.crossed
@pytest.mark.parametrize("act", [read, write])
@pytest.mark.parametrize("make", SETS)
def test_a_set_that_ckstore_would_not_have_left_is_never_opened(
    root: Path, victim: Path, make: Callable[[Path, Path], None], act: Callable[[Path], None]
) -> None:
    if make in BY_ROOT:
        require_root()
    make(root, victim)
    before = victim.read_bytes(), victim.stat().st_mode, victim.stat().st_mtime_ns

    with pytest.raises(CatalogUnavailable) as caught:
        Catalog(root).listing()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", CkstoreWarning)
        act(root)

    assert caught.value.why == "damaged"
    assert (victim.read_bytes(), victim.stat().st_mode, victim.stat().st_mtime_ns) == before
    if act is write:
        assert any("Rebuilt the catalog from 3 checkpoints" in str(warning.message) for warning in said)
        assert [info.step for info in Catalog(root).infos()] == [1, 2, 3]
        assert (root / "catalog.db.damaged-1").lstat()


def test_doctor_names_the_catalogs_that_were_set_aside(root: Path, victim: Path) -> None:
    names_a_file_outside(root, victim)
    with pytest.warns(CkstoreWarning, match="Rebuilt the catalog"), Store.open(root) as store:
        (found,) = [finding for finding in store.doctor().findings if finding.what == "catalog"]

    assert found.level == "note"
    assert "catalog.db.damaged-1" in found.found


def test_sqlite_would_delete_the_file_that_the_journal_of_these_tests_names(root: Path, victim: Path) -> None:
    names_a_file_outside(root, victim)

    with closing(sqlite3.connect(root / "catalog.db")) as opened:
        opened.execute("SELECT count(*) FROM sqlite_schema").fetchall()

    assert not victim.exists()


@pytest.mark.parametrize("name", [b"", b"x" * 600])
@pytest.mark.parametrize("count", [0, 1])
def test_a_name_at_the_end_is_found_whatever_stands_before_it(
    root: Path, victim: Path, name: bytes, count: int
) -> None:
    (root / "catalog.db-journal").write_bytes(journal(root, name, count) + super_journal(victim))

    with pytest.raises(CatalogUnavailable, match="names a second journal"):
        Catalog(root).listing()


def test_a_catalog_whose_maker_died_before_its_journal_went_is_completed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode=WAL").fetchall()
    head = MAGIC + b"".join(number.to_bytes(4, "big") for number in (0, 0, 0, SECTOR_BYTES, PAGE_BYTES))
    (tmp_path / "catalog.db-journal").write_bytes(head.ljust(SECTOR_BYTES, b"\0"))
    catalog = Catalog(tmp_path)

    assert catalog.create_or_migrate(timeout_s=10)
    assert catalog.check() == []
    assert not (tmp_path / "catalog.db-journal").exists()


def test_looking_at_a_journal_releases_no_lock_of_this_process(root: Path, victim: Path) -> None:
    with connection.reading(root / "catalog.db") as opened:
        opened.execute("SELECT count(*) FROM checkpoints").fetchall()
        before = locks_of(root / "catalog.db-shm")
        is_beside_a_database_with_a_log(root, victim)
        with contextlib.suppress(CatalogUnavailable):  # SQLite must not roll it back, and says so
            Catalog(root).listing()
        after = locks_of(root / "catalog.db-shm")

    assert before == after != []
    with pytest.raises(CatalogUnavailable, match="exists next to a database that uses a write-ahead log"):
        Catalog(root).listing()


def locks_of(path: Path) -> list[str]:
    """Return what the kernel says of the locks of this process on a file and on the database beside it."""
    inodes = {str(path.stat().st_ino), str(path.with_name("catalog.db").stat().st_ino)}
    lines = [line.split()[1:] for line in Path("/proc/locks").read_text().splitlines()]
    mine = [line for line in lines if str(os.getpid()) in line and line[4].rpartition(":")[2] in inodes]
    return sorted(" ".join(line) for line in mine)
