"""A directory of the store that was swapped for a symlink while it is open ends an act with an error that names it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError, SaveFailed, UnsafePlace
from ckstore.objects import reserve
from tests.faults.neighbour import seen


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store")
    for step in (1, 2):
        made.save({"a": list(range(step * 1000)), "b": step}, step=step)
    return made


def swapped(store: Store, name: str) -> Path:
    """Put a symlink in the place of a directory; return what it points to, a directory with the same files."""
    bait = store.path.parent / "bait"
    (store.path / name).rename(bait)
    (store.path / name).symlink_to(bait)
    return bait


ACTS: Sequence[tuple[str, str, Callable[[Store], object]]] = [
    ("refs", "tag", lambda store: store.tag("best", 1)),
    ("pins", "pin", lambda store: store.pin(1, "figure")),
    ("staging", "save", lambda store: store.save({"a": 1}, step=9)),
    ("blobs", "save", lambda store: store.save({"a": list(range(5000))}, step=9)),
    ("trash", "gc", lambda store: store.gc()),
    ("trash", "delete", lambda store: store.delete(1)),
    ("checkpoints/main", "save", lambda store: store.save({"a": 1}, step=9)),
]


@pytest.mark.parametrize("name, what, act", ACTS, ids=[f"{name}, {what}" for name, what, _ in ACTS])
def test_an_act_that_meets_a_symlink_names_it_and_touches_nothing_behind_it(
    name: str, what: str, act: Callable[[Store], object], store: Store
) -> None:
    bait = swapped(store, name)
    before = seen(bait)

    with pytest.raises(CkstoreError, match=rf"{name} is a symlink") as caught:
        act(store)

    assert seen(bait) == before
    assert isinstance(caught.value, UnsafePlace | SaveFailed)
    assert caught.value.hint
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_on_a_full_disk_nothing_is_deleted_where_a_symlink_in_the_place_of_the_reserve_points(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bait = swapped(store, "reserve")
    (bait / "thesis.txt").write_text("not yours")
    before = seen(bait)
    monkeypatch.setattr(reserve, "is_full", lambda _: True)

    with pytest.raises(UnsafePlace, match="reserve is a symlink, wanted a directory of the store"):
        store.gc()

    assert seen(bait) == before
    assert sorted(os.listdir(bait)) == [*(f"space-{n}" for n in range(reserve.INODES)), "thesis.txt"]


def test_a_run_that_is_a_symlink_has_no_checkpoints(store: Store) -> None:
    swapped(store, "checkpoints/main")

    assert store.checkpoints() == []
