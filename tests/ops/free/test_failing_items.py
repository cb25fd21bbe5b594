"""One item that the operating system refuses stops no other duty of retention and gc, and is named at the end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.fs import files, links
from ckstore.objects.staging import Staging
from tests.ops.free.test_gc import blobs_of, drop
from tests.ops.free.test_superseded import two_of_step
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.stores import check_store


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(2**20, value, dtype=np.uint8)}


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what lets every rename and fsync of a path that contains a text fail."""

    def begin(text: str) -> None:
        for module, name in ((links, "rename"), (files, "sync_directory")):
            original = getattr(module, name)

            def failing(path: Any, *others: Any, original: Any = original, **given: Any) -> Any:
                if text in str(path):
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
                return original(path, *others, **given)

            monkeypatch.setattr(module, name, failing)

    return begin


def steps(store: Store, run: str = "main") -> list[int]:
    return [info.step for info in store.checkpoints(run)]


def test_retention_after_a_save_drops_the_others_and_the_save_names_the_one(
    store: Store, refuse: Callable[[str], None]
) -> None:
    for step in range(4):
        store.save(state(step), step=step)
    store.config.retention = RetentionPolicy(keep_last=1)
    refuse("checkpoints/main/1")

    info = store.save(state(4), step=4)

    assert steps(store) == [1, 4]
    (said,) = info.warnings
    assert "retention of the run main failed afterwards: Invalid cross-device link" in said
    assert said.endswith("not dropped: main@1")
    assert len(list((store.path / "blobs").glob("*/*"))) == len({*os.listdir(blobs_dir(store.path, "main", 1))}) + 1


def test_prune_drops_what_it_can_and_its_report_names_the_rest(
    store: Store, refuse: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("a", "b"):
        for step in range(3):
            store.save(state(step), run=run, step=step)
    refuse("checkpoints/a")

    report = store.prune(RetentionPolicy(keep_last=1))

    assert (steps(store, "a"), steps(store, "b")) == ([0, 1, 2], [2])
    assert [(one.info.name, one.error.errno if one.error else 0) for one in report.skipped] == [
        ("a@0", errno.EXDEV),
        ("a@1", errno.EXDEV),
    ]
    assert "a@0 is kept, since it could not be dropped: Invalid cross-device link" in str(report)
    monkeypatch.undo()
    assert len(store.prune(RetentionPolicy(keep_last=1)).dropped) == 2
    check_store(store.path)


@pytest.mark.parametrize("place", ["blobs", "staging", "superseded"])
def test_gc_frees_the_others_and_names_the_one(
    store: Store, refuse: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    store.config.undo_by_hand_s = store.config.undo_by_rule_s = 0
    for step in (5, 6):
        store.save(state(step), step=step)
    text = max(os.listdir(blobs_dir(store.path, "main", 5)))
    said = f"The rest still uses space: blobs/.*{text}: Invalid cross-device link"
    if place == "superseded":
        older, _ = two_of_step(store)
        text, said = f"checkpoints/main/{older.directory}", "superseded checkpoints were not dropped.*main@1"
    elif place == "staging":
        staging = Staging.create(store._context.layout, "main", 9)
        staging.lock.release()
        text = said = f"staging/{staging.path.name}"
    drop(store, 5, 6)
    before = blobs_of(store)
    refuse(text)

    with pytest.warns(CkstoreWarning, match=said):
        report = store.gc()

    assert len(before - blobs_of(store)) == report.freed_count >= (1 if place == "blobs" else 2)
    assert os.listdir(store.path / "trash") == []
    monkeypatch.undo()
    store.gc()
    assert text not in {path.name for path in store.path.rglob("*")}
    check_store(store.path)


def test_a_dead_save_that_cannot_be_moved_does_not_keep_a_store_from_being_opened(
    store: Store, refuse: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(state(1), step=1)
    for step in (8, 9):
        Staging.create(store._context.layout, "main", step).lock.release()
    (one, other) = sorted(os.listdir(store.path / "staging"))
    refuse(f"staging/{one}")

    with pytest.warns(CkstoreWarning, match=f"staging/{one} of a dead save is kept: Invalid cross-device link"):
        again = Store.open(store.path)

    assert np.array_equal(again.load(1)["w"], state(1)["w"])
    assert other not in os.listdir(store.path / "staging")
    monkeypatch.undo()
