"""Which checkpoint the next save continues, after loads that failed, were of a few values, or ran in a forked child."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import DamagedBlob, DoesNotFit, NoSuchRef, Store
from ckstore.training import capture, restore
from tests.support.damage import blobs_by_size, flip

SIZES = {"a": 400_000, "b": 300_000}


def state(value: float) -> dict[str, Any]:
    return {name: torch.full((size,), value + i) for i, (name, size) in enumerate(SIZES.items())}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.init(tmp_path / "store")
    for step in (1, 2):
        store.save(state(step * 10), step=step)
    return store


def half_loaded(store: Store) -> dict[str, Any]:
    """Return a target into which a load of step 1 failed when a part of it was there."""
    target = state(0)
    flip(blobs_by_size(store, 1)[0], keep_time=True)
    with pytest.raises(DamagedBlob):
        store.load_into(target, 1)
    return target


def test_what_a_load_that_failed_halfway_has_left_continues_nothing_and_the_save_says_so(store: Store) -> None:
    target = half_loaded(store)
    assert target["a"][0] == 10  # a part of step 1 is there

    info = store.save(target, step=3)
    after = store.save(target, step=4)

    assert info.parent is None
    assert [note for note in info.warnings if "main@3 has no parent because the preceding load failed" in note]
    assert after.parent == info.id
    assert not [note for note in after.warnings if "parent" in note]


def test_a_saver_in_the_background_hears_of_it_too(store: Store) -> None:
    before = store.save_async(state(30), step=3).result()
    target = half_loaded(store)

    info = store.save_async(target, step=4).result()

    assert before.parent == store.info(2).id
    assert info.parent is None
    assert [note for note in info.warnings if "has no parent" in note]
    store.close()


def test_a_parent_that_is_given_is_taken(store: Store) -> None:
    target = half_loaded(store)

    info = store.save(target, step=3, parent=2)

    assert info.parent == store.info(2).id
    assert not [note for note in info.warnings if "parent" in note]


def test_a_load_that_touched_nothing_changes_no_parent(store: Store) -> None:
    with pytest.raises(DoesNotFit):
        store.load_into({"a": torch.zeros(3)}, 1)
    with pytest.raises(NoSuchRef):
        store.load_into(state(0), 7)

    assert store.save(state(30), step=3).parent == store.info(2).id


def test_a_load_after_the_one_that_failed_says_what_is_continued(store: Store) -> None:
    target = half_loaded(store)

    store.load_into(target, 2)

    assert store.save(target, step=3).parent == store.info(2).id


def test_a_restore_that_is_refused_continues_nothing(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    Store.init(tmp_path / "store").save(capture(model=model), step=1)
    store = Store.open(tmp_path / "store")

    with pytest.raises(DoesNotFit):
        restore(store, 1, model=model, optimizer=torch.optim.SGD(model.parameters()))

    assert store.save(capture(model=model), step=2).parent is None


def test_a_load_in_a_forked_child_changes_no_parent_of_its_parent_process(store: Store) -> None:
    child = os.fork()
    if not child:
        try:
            store.load_into(state(0), 1)
            store.save(state(1), step=9, run="child")
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert store.info("child@9").parent == store.info("main@1").id
    assert store.save(state(30), step=3, run="main").parent == store.info("main@2").id
