"""A store that another user made: what is wrong in one checkpoint stops no other act, and leads none elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError, CkstoreWarning, DamagedBlob, NoSuchRef
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir

STATE = {"w": b"1" * 9000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "store") as store:
        store.save(STATE, step=1)
        store.save({"w": b"2" * 9000}, step=2)
    return tmp_path / "store"


def manifest_is_a_pipe(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()
    os.mkfifo(checkpoint / "manifest.json")


def manifest_is_a_symlink(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").rename(checkpoint / "other.json")
    (checkpoint / "manifest.json").symlink_to("other.json")


def manifest_is_a_directory(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()
    (checkpoint / "manifest.json").mkdir()


def blobs_are_elsewhere(checkpoint: Path) -> None:
    (checkpoint / "blobs").rename(checkpoint.parents[3] / "blobs-elsewhere")
    (checkpoint / "blobs").symlink_to("../../../../blobs-elsewhere")


def a_blob_is_a_pipe(checkpoint: Path) -> None:
    (blob,) = (checkpoint / "blobs").iterdir()
    blob.unlink()
    os.mkfifo(blob)


def a_blob_is_a_symlink(checkpoint: Path) -> None:
    (blob,) = (checkpoint / "blobs").iterdir()
    blob.rename(checkpoint / "moved")
    blob.symlink_to("../moved")


BREAKS = [
    manifest_is_a_pipe,
    manifest_is_a_symlink,
    manifest_is_a_directory,
    blobs_are_elsewhere,
    a_blob_is_a_pipe,
    a_blob_is_a_symlink,
]


@pytest.mark.crossed
@pytest.mark.filterwarnings("ignore::ckstore.errors.CkstoreWarning")  # that the catalog is rebuilt
@pytest.mark.parametrize("damage", BREAKS)
@pytest.mark.parametrize("catalogued", [True, False], ids=["with-catalog", "without-catalog"])
def test_what_is_no_file_is_damage_of_that_checkpoint_alone(
    damage: Callable[[Path], None], catalogued: bool, path: Path
) -> None:
    damage(checkpoint_dir(path, "main", 2))
    if not catalogued:
        for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
            (path / name).unlink(missing_ok=True)

    with Store.open(path) as store:
        with pytest.raises(CkstoreError) as excinfo:
            store.load(2)
        assert store.load(1) == STATE
        with pytest.warns(CkstoreWarning, match="latest-valid is main@1"):
            assert store.load("latest-valid") == STATE
        assert [info.step for info in [store.save({"w": b"3" * 9000}, step=3)]] == [3]
        report = store.verify()

    assert isinstance(excinfo.value, (DamagedBlob, NoSuchRef))  # without a catalog it is not adopted
    assert {damaged.step for damaged in report.damage} <= {2}
    assert not report.ok


@pytest.mark.parametrize("name", ["store.json", "config.json"])
def test_settings_that_are_a_pipe_are_refused_at_once(name: str, path: Path) -> None:
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)

    with pytest.raises(DamagedBlob, match="not a regular file"), Store.open(path, readonly=True) as store:
        assert store.config.retention is None


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_of_the_user_under_the_name_of_a_blob_keeps_its_time(path: Path, same_size: bool) -> None:
    blob = next(blobs_dir(path, "main", 2).iterdir())
    canonical = path / "blobs" / blob.name.partition("-")[2][:2] / blob.name
    mine = path.parent / "mine"
    mine.write_bytes(b"m" * (blob.stat().st_size if same_size else 5))
    os.utime(mine, (10**9 + 7, 10**9 + 7))
    canonical.unlink()
    canonical.hardlink_to(mine)
    before = mine.stat()

    with Store.open(path) as store:
        store.verify()
        store.save({"w": b"2" * 9000}, step=3)
        store.gc()

    assert (mine.stat().st_mtime_ns, mine.stat().st_mode) == (before.st_mtime_ns, before.st_mode)
    assert mine.read_bytes()[:1] == b"m"
