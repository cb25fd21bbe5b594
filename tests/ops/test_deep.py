"""Directories nested deeper than a store ever nests them stop no act, and gc takes them apart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import CannotStore
from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.names import MOST_LEVELS
from tests.support.descriptors import open_below
from tests.support.stores import check_store

LEVELS = 1_200


def nest(folder: Path, levels: int = LEVELS, name: str = "d") -> None:
    """Nest directories in `folder`, with a file in each of the last two."""
    fd = os.open(folder, os.O_RDONLY)
    for level in range(levels):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
        if level >= levels - 2:
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


@pytest.fixture(autouse=True)
def _nothing_deep_is_left(tmp_path: Path) -> Iterator[None]:
    """Remove what pytest, which recurses, cannot."""
    yield
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store")
    made.save({"w": np.arange(1000.0)}, step=1)
    made.save({"w": np.arange(2000.0)}, step=2)
    return made


@pytest.mark.parametrize("where", ["staging", "trash"])
def test_opening_and_gc_take_apart_what_is_nested_deep(store: Store, where: str) -> None:
    (store.path / where / "deep").mkdir()
    nest(store.path / where / "deep")

    with Store.open(store.path) as again:
        report = again.gc()
        assert again.warnings == store.warnings
        assert np.array_equal(again.load(2)["w"], np.arange(2000.0))

    assert report.trash_left == ()
    assert os.listdir(store.path / "staging") == os.listdir(store.path / "trash") == []
    check_store(store.path)


LOOKS: dict[str, Callable[[Store], object]] = {
    "verify": lambda store: store.verify(),
    "doctor": lambda store: store.doctor(),
    "du": lambda store: store.du(),
    "gc --dry-run": lambda store: store.gc(dry_run=True),
    "reindex": lambda store: store.reindex(),
    "log": lambda store: store.checkpoints(),
    "verify --repair-from": lambda store: store.verify(repair_from=store.path),
}


@pytest.mark.parametrize("where", ["staging", "trash", "blobs", "checkpoints", "quarantine"])
def test_looking_at_a_store_with_deep_directories_ends(store: Store, where: str) -> None:
    nest(store.path / where)

    for look in LOOKS.values():
        look(store)

    assert open_below(store.path) == {}


def test_verify_names_what_is_nested_too_deep(store: Store) -> None:
    nest(store.path / "quarantine")

    report = store.verify()

    deep = "/".join(["quarantine", *["d"] * dirfd_stat.MOST_LEVELS])
    assert [found.subject for found in report.findings if found.kind == "deep"] == [deep]


def test_a_file_that_a_user_made_of_a_blob_in_a_deep_directory_in_trash_is_freed_once(store: Store) -> None:
    store.delete(1)
    for trashed in (store.path / "trash").iterdir():
        nest(trashed, 40)
        for blob in (trashed / "blobs").iterdir():
            os.link(blob, trashed / "d" / "d" / "d" / blob.name)

    with Store.open(store.path) as again:
        again.gc()

    assert os.listdir(store.path / "trash") == []
    check_store(store.path)


def test_a_commit_of_deep_directories_is_refused_with_the_path(store: Store, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    nest(tmp_path / "files", MOST_LEVELS + 2)

    with pytest.raises(CannotStore, match="nested more than 256 deep"):
        store.commit(tmp_path / "files")


def test_a_walk_sees_every_file_that_is_not_too_deep(tmp_path: Path) -> None:
    nest(tmp_path, 5)
    (tmp_path / "symlink").symlink_to(tmp_path)
    deep: list[StorePath] = []

    seen = sorted(
        place.inner for place, _ in dirfd_stat.walk(StorePath(str(tmp_path)), deep) if ".home" not in place.parts
    )

    assert seen == ["d/d/d/d/d/file", "d/d/d/d/file", "symlink"]
    assert deep == []
