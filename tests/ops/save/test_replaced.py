"""A checkpoint that a tag or a pin names is replaced by other bytes only with `force`, and never without a word."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CheckpointInfo, Store
from ckstore.errors import InUse, NoSuchRef
from ckstore.fs import links
from tests.support.checkpoint_dirs import checkpoint_dir

PROTECT: list[Callable[[Store], object]] = [
    lambda store: store.tag("best", 3),
    lambda store: store.pin(3, "for the paper"),
]


Saving = Callable[[Store, dict[str, Any]], CheckpointInfo]


def save(store: Store, how: dict[str, Any]) -> CheckpointInfo:
    return store.save({"x": np.ones(3000)}, 3, **how)


def save_async(store: Store, how: dict[str, Any]) -> CheckpointInfo:
    with Store.open(store.path) as own:  # its saver ends with it
        return own.save_async({"x": np.ones(3000)}, 3, **how).result(120)


def commit(store: Store, how: dict[str, Any]) -> CheckpointInfo:
    folder = store.path.parent / "checkpoint-3"
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", np.ones(3000))
    return store.commit(folder, **how)


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
def test_other_bytes_do_not_take_the_place_of_what_is_protected(
    store: Store, protect: Callable[[Store], object], saving: Saving, damage: str
) -> None:
    protect(store)
    before = store.info(3)
    directory = checkpoint_dir(store.path, "main", 3)
    if damage == "blob gone":
        next((directory / "blobs").iterdir()).unlink()
    inode = directory.stat().st_ino

    with pytest.raises(InUse, match=r"main@3 (has the tag best|is pinned: )") as caught:
        saving(store, {"if_exists": "replace"})

    assert "first, save under another step, or give force=True" in str(caught.value.hint)
    assert directory.stat().st_ino == inode
    assert not list((store.path / "staging").iterdir())
    if damage == "whole":
        assert store.info("main@3") == before


@pytest.mark.crossed
@pytest.mark.parametrize("protect", PROTECT, ids=["tag", "pin"])
@pytest.mark.parametrize("saving", [save, save_async, commit])
def test_with_force_tags_and_pins_name_what_is_new_and_it_is_said(
    store: Store, protect: Callable[[Store], object], saving: Saving
) -> None:
    protect(store)

    info = saving(store, {"if_exists": "replace", "force": True})

    (warning,) = info.warnings
    assert warning.startswith("main@3 was replaced: the ")
    assert warning.endswith(" may protect other bytes now")
    assert [pin.id for pin in store.pins()] in ([], [info.id])
    assert not any(pin.dangling for pin in store.pins())
    assert [tag.id for tag in store.tags()] in ([], [info.id])
    with pytest.raises(InUse):
        store.delete(3)


@pytest.mark.parametrize("protect", PROTECT, ids=["tag", "pin"])
def test_a_checkpoint_without_a_manifest_is_replaced_and_it_is_said(
    store: Store, protect: Callable[[Store], object]
) -> None:
    protect(store)
    (checkpoint_dir(store.path, "main", 3) / "manifest.json").unlink()

    info = store.save({"x": np.ones(3000)}, 3)

    assert "main@3 was replaced" in info.warnings[0]
    assert not any(pin.dangling for pin in store.pins())


def test_a_tag_that_the_save_itself_moves_does_not_stop_it(store: Store) -> None:
    store.tag("best", 3)

    info = store.save({"x": np.ones(3000)}, 3, if_exists="replace", tags=["best"])

    assert info.tags == ("best",)
    assert info.warnings == ()


def test_the_same_bytes_with_another_description_may_take_the_place_and_the_pin_goes_along(store: Store) -> None:
    store.tag("best", 3)
    store.pin(3, "for the paper")

    info = store.save({"x": np.zeros(3000)}, 3, message="as before", if_exists="replace")

    assert info.warnings == ()
    (pin,) = store.pins()
    assert (pin.id, pin.dangling, pin.reason) == (info.id, False, "for the paper")


def test_an_expired_pin_does_not_stop_a_replacement(store: Store) -> None:
    store.pin(3, "for a moment", expires=0.000001)

    store.save({"x": np.ones(3000)}, 3, if_exists="replace")


def test_a_tag_that_is_written_while_the_checkpoint_is_replaced_names_no_other_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store.info(3)
    true_exchange = links.exchange

    def tag_elsewhere() -> None:
        Store.open(store.path, recover=False).tag("best", before)

    tagging: list[Future[object]] = []

    def exchange(first: Any, second: Any) -> None:
        tagging.append(other.submit(tag_elsewhere))
        wait(tagging, timeout=0.3)  # it has to wait for the lock of the run
        true_exchange(first, second)

    monkeypatch.setattr(links, "exchange", exchange)
    with ThreadPoolExecutor(1) as other:
        store.save({"x": np.ones(3000)}, 3, if_exists="replace")

    assert isinstance(tagging[0].exception(), NoSuchRef)
    assert store.tags() == []
