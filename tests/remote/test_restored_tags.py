"""A directory remote is restored from a backup. Tags that this store moved since are written again, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.ops.mirror_record import read_mirrored
from ckstore.remote import keys
from ckstore.store import context_of
from tests.remote.test_listing import all_steps, later
from tests.remote.test_push import MIB, state
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store whose mirror has three checkpoints and a tag of the first one."""
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made.remotes.add("cold", tmp_path / "cold")
    made.config.mirror = "cold"
    for step in (1, 2, 3):
        made.save(state(step), step=step, tags=["best"] if step == 1 else ())
    all_steps(made)
    return made


def restore(backup: Path, place: Path) -> None:
    """Restore the objects of a remote in place, as a backup program does, which changes their times."""
    for entry in place.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(backup, place, dirs_exist_ok=True, copy_function=shutil.copyfile)


def best_there(store: Store, folder: Path) -> int:
    """Return the step that a new clone of the mirror has as the best one."""
    return Store.clone(store.remotes.get("cold").target.address, folder).info("best").step


def test_a_tag_moved_before_the_mirror_was_restored_is_written_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tmp_path / "cold", tmp_path / "backup")
    for step in (2, 3):
        store.tag("best", step)
        all_steps(store)
    restore(tmp_path / "backup", tmp_path / "cold")
    assert best_there(store, tmp_path / "before") == 1

    later(monkeypatch)
    all_steps(store)

    assert best_there(store, tmp_path / "after") == 3
    check_store(store.path)


def test_a_tag_that_another_store_moved_on_the_mirror_is_left_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.tag("best", 2)
    all_steps(store)
    other = Store.clone(store.remotes.get("cold").target.address, tmp_path / "other")
    other.tag("best", 3)
    other.push(3)
    assert best_there(store, tmp_path / "before") == 3

    later(monkeypatch)
    all_steps(store)

    assert best_there(store, tmp_path / "after") == 3


def test_the_record_of_former_tags_is_bounded_and_omits_the_current_one(store: Store) -> None:
    key = keys.tag("best")
    for step in (2, 1, 3, 1):
        store.tag("best", step)
        all_steps(store)
    known = read_mirrored(context_of(store).layout, "cold")
    assert len(known.former[key]) == 2
    assert known.documents[key] not in known.former[key]
    store.untag("best")
    store.tag("other", 1)
    all_steps(store)
    assert key not in read_mirrored(context_of(store).layout, "cold").former
