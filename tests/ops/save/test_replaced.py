"""A checkpoint that a tag or a pin names stays when its step is saved again, superseded, and the save says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CheckpointInfo, Store
from ckstore.errors import NoSuchRef, Protected
from ckstore.objects import trash
from tests.support.checkpoint_dirs import checkpoint_dir

PROTECT: list[Callable[[Store], object]] = [
    lambda store: store.tag("best", 3),
    lambda store: store.pin(3, "for the paper"),
]


Saving = Callable[[Store, dict[str, Any]], CheckpointInfo]


def save(store: Store, how: dict[str, Any]) -> CheckpointInfo:
    info: CheckpointInfo = store.save({"x": np.ones(3000)}, 3, **how)
    return info


def save_async(store: Store, how: dict[str, Any]) -> CheckpointInfo:
    with Store.open(store.path) as own:  # its saver ends with it
        return own.save_async({"x": np.ones(3000)}, 3, **how).result(120)


def commit(store: Store, how: dict[str, Any]) -> CheckpointInfo:
    folder = store.path.parent / "checkpoint-3"
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", np.ones(3000))
    info: CheckpointInfo = store.commit(folder, **how)
    return info


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "s")
    made.save({"x": np.zeros(3000)}, 3)
    return made


@pytest.mark.crossed
@pytest.mark.parametrize("protect", PROTECT, ids=["tag", "pin"])
@pytest.mark.parametrize(
    "saving,damage", [(save, "whole"), (save, "blob gone"), (save_async, "whole"), (commit, "whole")]
)
def test_what_is_protected_stays_beside_what_supersedes_it_and_it_is_said(
    store: Store, protect: Callable[[Store], object], saving: Saving, damage: str
) -> None:
    protect(store)
    before = store.info(3)
    directory = checkpoint_dir(store.path, "main", 3)
    if damage == "blob gone":
        next((directory / "blobs").iterdir()).unlink()
    inode = directory.stat().st_ino

    info = saving(store, {"if_exists": "replace"})
    store.gc(now=True)

    (warning,) = info.warnings
    assert re.fullmatch(r"the older checkpoint of main@3 is kept: main@3 (has the tag best|is pinned: .*)", warning)
    assert directory.stat().st_ino == inode
    assert store.info(3).id == info.id
    assert np.array_equal(x_of(store, 3), np.ones(3000))
    assert {pin.id for pin in store.pins()} | {tag.name for tag in store.tags()} in ({before.id}, {"best"})
    if damage == "whole":
        assert not any(pin.dangling for pin in store.pins())
        assert store.info(before.id) == before
        assert store.info(before.id).superseded
        assert np.array_equal(store.load(before.id)["x"], np.zeros(3000))
    with pytest.raises(Protected):
        store.delete(before)


def x_of(store: Store, ref: Any) -> Any:
    """Return the array, of a state or of a committed file."""
    with store.open_checkpoint(ref) as checkpoint:
        if checkpoint.keys():
            return checkpoint["x"]
    store.checkout(ref, store.path.parent / "out")
    return np.load(store.path.parent / "out" / "x.npy")


@pytest.mark.parametrize("protect", PROTECT, ids=["tag", "pin"])
def test_what_is_left_of_a_protected_checkpoint_without_a_manifest_stays(
    store: Store, protect: Callable[[Store], object]
) -> None:
    protect(store)
    directory = checkpoint_dir(store.path, "main", 3)
    (directory / "manifest.json").unlink()

    info = store.save({"x": np.ones(3000)}, 3)

    assert "the older checkpoint of main@3 is kept" in info.warnings[0]
    assert directory.is_dir()
    assert store.info(3) == info
    assert all(pin.dangling for pin in store.pins())
    assert all(tag.dangling for tag in store.tags())


def test_a_tag_that_the_save_itself_moves_protects_the_older_one_no_more(store: Store) -> None:
    store.tag("best", 3)

    info = store.save({"x": np.ones(3000)}, 3, if_exists="replace", tags=["best"])

    assert info.tags == ("best",)
    assert info.warnings == ()
    assert store.checkpoints(superseded=True) == [info]


def test_the_same_bytes_with_another_description_are_another_checkpoint(store: Store) -> None:
    before = store.info(3)
    store.pin(3, "for the paper")

    info = store.save({"x": np.zeros(3000)}, 3, message="as before", if_exists="replace")

    assert info.new_bytes == 0
    assert store.info(3).message == "as before"
    (pin,) = store.pins()
    assert (pin.id, pin.dangling, pin.reason) == (before.id, False, "for the paper")


def test_an_expired_pin_protects_nothing(store: Store) -> None:
    store.pin(3, "for a moment", expires=0.000001)

    info = store.save({"x": np.ones(3000)}, 3, if_exists="replace")

    assert info.warnings == ()
    assert store.checkpoints(superseded=True) == [info]


def test_a_tag_that_is_written_while_the_checkpoint_is_superseded_protects_it_or_names_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.info(3)
    move = trash.move_to_trash

    def tag_elsewhere() -> None:
        Store.open(store.path, recover=False).tag("best", before)

    tagging: list[Future[object]] = []

    def moving(*args: Any, **options: Any) -> Any:
        tagging.append(other.submit(tag_elsewhere))
        wait(tagging, timeout=0.3)  # it has to wait for the lock of the run
        return move(*args, **options)

    monkeypatch.setattr(trash, "move_to_trash", moving)
    with ThreadPoolExecutor(1) as other:
        store.save({"x": np.ones(3000)}, 3, if_exists="replace")

    assert isinstance(tagging[0].exception(), NoSuchRef)
    assert store.tags() == []
