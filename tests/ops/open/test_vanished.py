"""A store that vanishes, or a copy that lacks its checkpoints, does not look like an empty store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckstore import Ranks, RetentionPolicy, Store
from ckstore.errors import CkstoreError, StoreNotFound
from tests.support.stores import check_store

QUESTIONS: dict[str, Callable[[Store], object]] = {
    "latest": lambda store: store.latest(),
    "latest valid": lambda store: store.latest(valid=True),
    "best": lambda store: store.best("loss"),
    "checkpoints": lambda store: store.checkpoints(),
    "checkpoints of a run": lambda store: store.checkpoints("main"),
    "runs": lambda store: store.runs(),
    "tags": lambda store: store.tags(),
    "pins": lambda store: store.pins(),
    "load": lambda store: store.load("latest"),
    "retention": lambda store: store.config.retention,
    "verify": lambda store: store.verify(),
    "gc": lambda store: store.gc(),
    "follow": lambda store: list(store.follow("main", timeout_s=0)),
    "save": lambda store: store.save({"w": np.ones(9)}, step=9),
}


def _saved(path: Path) -> Store:
    store = Store.init(path)
    for step in (1, 2):
        store.save({"w": np.full(300_000, step)}, step=step, metrics={"loss": step})
    return store


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "readonly"])
def test_a_store_that_was_moved_away_is_not_empty(tmp_path: Path, question: str, readonly: bool) -> None:
    _saved(tmp_path / "store").close()
    with Store.open(tmp_path / "store", readonly=readonly) as store:
        if question == "save" and readonly:
            return
        (tmp_path / "store").rename(tmp_path / "moved")
        with pytest.raises(CkstoreError if question in ("gc", "save") else StoreNotFound):
            QUESTIONS[question](store)
    check_store(tmp_path / "moved")


@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "readonly"])
def test_a_copy_without_its_checkpoints_is_refused(tmp_path: Path, readonly: bool) -> None:
    _saved(tmp_path / "store").close()
    shutil.move(tmp_path / "store" / "checkpoints", tmp_path / "away")

    with pytest.raises(StoreNotFound, match="has no checkpoints"):
        Store.open(tmp_path / "store", readonly=readonly).latest()

    assert not (tmp_path / "store" / "checkpoints").exists()
    shutil.move(tmp_path / "away", tmp_path / "store" / "checkpoints")
    check_store(tmp_path / "store")


def test_a_copy_of_a_store_without_checkpoints_may_lack_empty_directories(tmp_path: Path) -> None:
    Store.init(tmp_path / "store").close()
    for folder in (tmp_path / "store").iterdir():
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    with Store.open(tmp_path / "store") as store:
        assert store.latest() is None
        store.save({"w": np.ones(9)}, step=1)
    check_store(tmp_path / "store")


WRITES: dict[str, Callable[[Store], object]] = {
    "save": lambda store: store.save({"w": np.ones(9)}, step=9),
    "save in the background": lambda store: store.save_async({"w": np.ones(9)}, step=9).result(60),
    "save as a rank": lambda store: store.save({"w": np.ones(9)}, step=9, ranks=Ranks(0, 1, attempt="a")),
    "delete": lambda store: store.delete(2),
    "tag": lambda store: store.tag("paper", 2),
    "pin": lambda store: store.pin(2, "paper"),
    "annotate": lambda store: store.annotate(2, metrics={"accuracy": 1.0}),
    "prune": lambda store: store.prune(RetentionPolicy(keep_last=1)),
    "gc": lambda store: store.gc(),
    "set": lambda store: setattr(store.config, "threads", 3),
    "rename a run": lambda store: store.rename_run("main", "other"),
    "compact": lambda store: store.compact(),
    "reindex": lambda store: store.reindex(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_nothing_is_written_into_another_store_at_the_path(tmp_path: Path, write: str, used: bool) -> None:
    _saved(tmp_path / "store").close()
    with Store.open(tmp_path / "store") as store:
        if used:
            store.save({"w": np.ones(9)}, step=3)
            store.save_async({"w": np.ones(9)}, step=4).result(60)
        (tmp_path / "store").rename(tmp_path / "moved")
        with _saved(tmp_path / "store") as other:
            found = (other.checkpoints(), other.tags(), other.pins(), other.config.threads)

            with pytest.raises(StoreNotFound, match="another store is now at"):
                WRITES[write](store)

            assert (other.checkpoints(), other.tags(), other.pins(), other.config.threads) == found
    check_store(tmp_path / "store")
    check_store(tmp_path / "moved")


@pytest.mark.parametrize("question", [name for name in QUESTIONS if name not in ("gc", "save")])
@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "readonly"])
def test_another_store_at_the_path_does_not_answer_for_the_opened_one(
    tmp_path: Path, question: str, readonly: bool
) -> None:
    _saved(tmp_path / "store").close()
    with Store.open(tmp_path / "store", readonly=readonly) as store:
        QUESTIONS[question](store)
        (tmp_path / "store").rename(tmp_path / "moved")
        _saved(tmp_path / "store").close()

        with pytest.raises(StoreNotFound, match="another store is now at"):
            QUESTIONS[question](store)
    check_store(tmp_path / "store")
    check_store(tmp_path / "moved")


def test_a_store_whose_description_is_rewritten_is_still_the_same(tmp_path: Path) -> None:
    with _saved(tmp_path / "store") as store:
        shutil.copy2(tmp_path / "store" / "store.json", tmp_path / "copy")
        (tmp_path / "copy").rename(tmp_path / "store" / "store.json")

        store.save({"w": np.ones(9)}, step=3)
    check_store(tmp_path / "store")


def test_a_damaged_description_of_the_store_does_not_stop_a_training(tmp_path: Path) -> None:
    with _saved(tmp_path / "store") as store:
        text = (tmp_path / "store" / "store.json").read_bytes()
        (tmp_path / "store" / "store.json").write_bytes(b"damaged")

        store.save({"w": np.ones(9)}, step=3)

        (tmp_path / "store" / "store.json").write_bytes(text)
    check_store(tmp_path / "store")
