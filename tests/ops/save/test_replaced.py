"""A checkpoint that a tag or a pin names is replaced by other bytes only with `force`, and never without a word."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import InUse, NoSuchRef
from ckstore.fs import links

if TYPE_CHECKING:
    from collections.abc import Callable

PROTECT: list[Callable[[Store], object]] = [
    lambda store: store.tag("best", 3),
    lambda store: store.pin(3, "for the paper"),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "s")
    made.save({"x": np.zeros(3000)}, 3)
    return made


@pytest.mark.parametrize("protect", PROTECT, ids=["tag", "pin"])
@pytest.mark.parametrize("damage", ["whole", "blob gone"])
def test_other_bytes_do_not_take_the_place_of_what_is_protected(
    store: Store, protect: Callable[[Store], object], damage: str
) -> None:
    protect(store)
    before = store.info(3)
    directory = store.path / "checkpoints/main/3"
    if damage == "blob gone":
        next((directory / "blobs").iterdir()).unlink()
    inode = directory.stat().st_ino

    with pytest.raises(InUse, match=r"main@3 (has the tag best|is pinned: )") as caught:
        store.save({"x": np.ones(3000)}, 3, if_exists="replace")

    assert "first, save under another step, or give force=True" in str(caught.value.hint)
    assert directory.stat().st_ino == inode
    assert not list((store.path / "staging").iterdir())
    if damage == "whole":
        assert store.info("main@3") == before


@pytest.mark.parametrize("protect", PROTECT, ids=["tag", "pin"])
def test_with_force_tags_and_pins_name_what_is_new_and_it_is_said(
    store: Store, protect: Callable[[Store], object]
) -> None:
    protect(store)

    info = store.save({"x": np.ones(3000)}, 3, if_exists="replace", force=True)

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
    (store.path / "checkpoints/main/3/manifest.json").unlink()

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
