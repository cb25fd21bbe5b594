"""Directories and files get the permissions that they are meant to have, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.fs import files, links

UMASKS = [0o000, 0o022, 0o077, 0o277, 0o777]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o2770], ids=oct)
def test_a_directory_has_the_permissions_that_are_asked_for_or_those_of_its_parent(
    mask: int, mode: int, tmp_path: Path
) -> None:
    with umask(mask):
        assert links.make_directory(tmp_path / "a", mode=mode)
        assert links.make_directory(tmp_path / "a" / "b")

    assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "a" / "b")) == (mode, mode)


def test_a_directory_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o711)

    assert not links.make_directory(tmp_path / "a", mode=0o700)
    assert mode_of(tmp_path / "a") == 0o711


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_a_file_has_the_permissions_that_are_asked_for(mask: int, tmp_path: Path) -> None:
    with umask(mask):
        files.create_file(tmp_path / "a", b"x", mode=0o640)
        files.create_blob(tmp_path / "b", memoryview(b"x"))

    assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "b")) == (0o640, 0o444)


def modes_in(root: Path) -> dict[str, int]:
    """Return the permissions of everything in a store; digests and random names are left out."""
    found = {}
    for folder, names, files_ in os.walk(root):
        for name in (*names, *files_):
            path = Path(folder, name)
            kind = "symlink" if path.is_symlink() else "directory" if path.is_dir() else "file"
            what = "blob" if name.startswith("xxh3-") else "pin" if name.startswith("pin-") else name
            found[f"{kind} {what}"] = mode_of(path)
    return found


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids=oct)
def test_a_store_is_its_owners_alone_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    with umask(mask), Store.init(tmp_path / "store") as store:
        store.save({"w": b"1" * 9000}, step=1, tags=["best"])
        store.pin(1, "x")
        store.annotate(1, metrics={"loss": 1.0})
        store.config.retention = None

    found = modes_in(tmp_path / "store")
    assert mode_of(tmp_path / "store") == 0o700
    assert {mode for name, mode in found.items() if name.startswith("directory")} == {0o700}
    of_files = {name: mode for name, mode in found.items() if name.startswith("file")}
    assert of_files.pop("file catalog.db-wal", 0o600) == of_files.pop("file catalog.db-shm", 0o600) == 0o600
    assert of_files == {
        "file store.json": 0o444,
        "file config.json": 0o600,
        "file manifest.json": 0o444,
        "file annotations.json": 0o600,
        "file pin": 0o600,
        "file blob": 0o444,
        "file catalog.db": 0o600,
        "file events.jsonl": 0o600,
        **{f"file space-{number}": 0o600 for number in range(8)},
    }


def test_a_store_in_a_directory_that_a_group_may_read_can_be_read_by_the_group(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o2750)
    with umask(0o077), Store.init(tmp_path / "store") as store:
        store.save({"w": b"1" * 9000}, step=1)
        store.config.retention = None

    found = modes_in(tmp_path / "store")
    assert {mode for name, mode in found.items() if name.startswith("directory")} == {0o2750}
    assert found["file config.json"] == 0o640
