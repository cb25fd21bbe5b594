"""On a full disk the catalog is told to be unavailable; the process goes on.

SQLite maps its index of the log into memory, and makes sure beforehand that each 4 KiB of it have room. Where that is
not enough the kernel ends a process that writes there with SIGBUS, so there nothing is mapped.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.catalog import Catalog, connection
from ckstore.errors import CatalogUnavailable
from tests.catalog.manifests import SOON_S
from tests.support.filling import prepare
from tests.support.loopfs import Kind, loop_filesystem
from tests.support.requirements import representatives

pytestmark = pytest.mark.root

_ROOT = Path(__file__).resolve().parents[2]
_KINDS: list[tuple[Kind, tuple[str, ...]]] = [
    *(("ext4", ("-m", "0", "-b", "1024")), ("xfs", ("-b", "size=1024")), ("btrfs", ())),
]
_IDS = ["ext4-1k", "xfs-1k", "btrfs"]
_NOT_MAPPED = pytest.mark.parametrize("kind, options", _KINDS, ids=_IDS)
_BLOBS = [(f"xxh3-{i:032x}", i) for i in range(300)]
_STEPPING = """
import sys
from pathlib import Path
from ckstore.catalog import Catalog
from tests.catalog.test_full_disk import use
from tests.support.filling import leave_bytes

mount = Path(sys.argv[1])
catalog = Catalog(mount / "store")
done = 0
for kib in (*range(0, 240, 8), *range(240, 420, 2)):
    leave_bytes(mount, kib * 1024)
    done += use(catalog)
print(done)
"""
_MEANWHILE = """
import sys
from pathlib import Path
from ckstore.catalog import Catalog
from tests.catalog.test_full_disk import use

catalog = Catalog(Path(sys.argv[1]) / "store")
used = [use(catalog) for _ in range(int(sys.argv[2]))]
print(sum(used), used.count(False))
"""
_FILLING = """
import os, sys

fd = os.open(sys.argv[1] + "/ballast", os.O_WRONLY)
print("ready", flush=True)
while True:
    for size in (65536, 1024):
        try:
            while True:
                os.write(fd, bytes(size))
        except OSError:
            continue
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
"""


def use(catalog: Catalog) -> bool:
    """Read and write the catalog; False: it was not available."""
    try:
        catalog.listing()
        catalog.add_candidates(_BLOBS, timeout_s=5)
        catalog.forget([digest for digest, _ in _BLOBS], timeout_s=5)
    except CatalogUnavailable:
        return False
    return True


@contextlib.contextmanager
def small_filesystem(kind: Kind, options: tuple[str, ...], folder: Path) -> Iterator[Path]:
    with loop_filesystem(kind, 64, folder, mkfs_options=options) as mount:
        prepare(mount)
        Store.init(mount / "store")
        yield mount


def run(program: str, *arguments: object) -> list[int]:
    """Run a program in a process of its own; return the numbers that it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250, cwd=_ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return [int(word) for word in done.stdout.split()]


def mapped_below(place: Path) -> list[str]:
    """Return the files below a directory that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[-1] for line in lines if line.split()[-1].startswith(str(place))]


@pytest.mark.parametrize("block_bytes", representatives([1024, 4096], 1024))
def test_no_number_of_free_blocks_ends_the_process(block_bytes: int, tmp_path: Path) -> None:
    with small_filesystem("ext4", ("-m", "0", "-b", str(block_bytes)), tmp_path) as mount:
        (done,) = run(_STEPPING, mount)

    assert done > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind, options", representatives(_KINDS, _KINDS[0]), ids=_IDS)
def test_a_disk_that_others_fill_meanwhile_does_not_end_the_process(
    kind: Kind, options: tuple[str, ...], tmp_path: Path
) -> None:
    with small_filesystem(kind, options, tmp_path) as mount:
        filling = subprocess.Popen([sys.executable, "-c", _FILLING, str(mount)], stdout=subprocess.PIPE)
        try:
            assert filling.stdout is not None
            filling.stdout.readline()
            done, refused = run(_MEANWHILE, mount, 200)
        finally:
            filling.kill()
            filling.communicate()

    assert done + refused == 200


@_NOT_MAPPED
def test_where_a_mapped_page_may_lose_its_room_nothing_is_mapped(
    kind: Kind, options: tuple[str, ...], tmp_path: Path
) -> None:
    with small_filesystem(kind, options, tmp_path) as mount:
        catalog = Catalog(mount / "store")
        seen: list[list[str]] = []
        with connection.writing(catalog.path, timeout_s=SOON_S) as opened:
            opened.execute("INSERT INTO tags (name, run, step, directory) VALUES ('test', 'main', 1, '1')")
            seen.append(mapped_below(mount))
            modes = [opened.execute(f"PRAGMA {name}").fetchall() for name in ("journal_mode", "synchronous")]
        with connection.reading(catalog.path) as opened:
            count = opened.execute("SELECT count(*) FROM tags WHERE name = 'test'").fetchall()
            seen.append(mapped_below(mount))
        names = {path.name for path in catalog.path.parent.iterdir()}

    assert seen == [[], []]
    assert modes == [[("truncate",)], [(3,)]]
    assert count == [(1,)]
    assert "catalog.db-shm" not in names


def test_where_a_page_keeps_its_room_there_is_a_log(tmp_path: Path) -> None:
    for kind in ("ext4", "xfs"):
        with small_filesystem(kind, (), tmp_path) as mount:
            catalog = Catalog(mount / "store")
            with connection.reading(catalog.path):
                mapped = mapped_below(mount)

        assert mapped == [f"{catalog.path}-shm"]


@_NOT_MAPPED
def test_a_catalog_that_was_made_where_logs_are_good_is_not_mapped_and_changed_when_written(
    kind: Kind, options: tuple[str, ...], tmp_path: Path
) -> None:
    with small_filesystem(kind, options, tmp_path) as mount:
        catalog = Catalog(mount / "store")
        with contextlib.closing(sqlite3.connect(catalog.path, isolation_level=None)) as opened:
            opened.execute("PRAGMA journal_mode=WAL").fetchall()
            opened.execute("INSERT INTO tags (name, run, step, directory) VALUES ('before', 'main', 1, '1')")
            for name in ("catalog.db", "catalog.db-wal"):
                (mount / f"{name}.copy").write_bytes((mount / "store" / name).read_bytes())
        for name in ("catalog.db", "catalog.db-wal"):  # as copied from a process that was killed
            os.rename(mount / f"{name}.copy", mount / "store" / name)

        with pytest.raises(CatalogUnavailable) as caught:
            catalog.listing()
        unseen = mapped_below(mount)
        catalog.note_blobs_listed("after", timeout_s=SOON_S)
        outline = catalog.outline()
        problems = catalog.check()
        names = {path.name for path in catalog.path.parent.iterdir()}

    assert caught.value.why == "unreadable"  # until a process writes
    assert unseen == []
    assert outline.blobs_listed == "after"
    assert "before" in outline.tags
    assert problems == []
    assert not {"catalog.db-shm", "catalog.db-wal"} & names


def test_what_cannot_be_asked_of_a_filesystem_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        connection.may_be_mapped(tmp_path / "gone")
