"""A training goes on over failures of the storage: those that pass, and, where the store says so, some that do not."""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import BadInput, CheckpointInfo, NotSaved, SaveFailed, Store
from ckstore.saver.client import process
from tests.integrations import tiny_trainer
from tests.integrations.marks import TRAINS
from tests.support.failing_sync import FOR_GOOD, FailingSync
from tests.support.requirements import require, require_transformers
from tests.support.stores import check_store

pytestmark = [*TRAINS, pytest.mark.filterwarnings("ignore:.*is not saved, and the program continues.*")]
Fails = Callable[..., FailingSync]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    torch.set_num_threads(1)
    return Store.init(tmp_path / "store")


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fails]:
    """Let the first fsync of some tries of the saves of these steps fail."""
    made: list[FailingSync] = []

    def at(*steps: int, tries: int = FOR_GOOD) -> FailingSync:
        sync = FailingSync(lambda path: any(path.startswith(f"main@{step}.") for step in steps))
        sync.arm(1, tries)
        monkeypatch.setattr(os, "fsync", sync)
        made.append(sync)
        return sync

    yield at
    for sync in made:
        sync.let_go()


@pytest.fixture
def saver_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first two saves in the background find a full disk."""
    folder = tmp_path / "struck"
    folder.mkdir()
    asked = {"state": "syncing", "what": "full", "times": 2, "folder": str(folder)}
    monkeypatch.setitem(os.environ, "CKSTORE_TEST_SAVER", json.dumps(asked))
    monkeypatch.setattr(process, "ENTRY", "tests.saver.double")


def tolerant(store: Store, most: int = 5) -> Store:
    store.config.save_retries = 0
    store.config.on_failed_save = "warn"
    store.config.failed_saves_most = most
    return Store.open(store.path)


def steps(store: Store) -> list[int]:
    return [info.step for info in store.checkpoints()]


# ---------------------------------------------------------------- Lightning


@pytest.fixture
def fit() -> Callable[..., Any]:
    require(importlib.util.find_spec("lightning") is not None, "needs lightning")
    from tests.integrations.tiny_lightning import fit

    return fit


def test_lightning_goes_on_over_one_failed_sync(
    tmp_path: Path, store: Store, fails: Fails, fit: Callable[..., Any]
) -> None:
    sync = fails(4, tries=1)

    fit(store, tmp_path)

    assert len(sync.failed) == 1
    assert steps(store) == [2, 4, 6, 8]


def test_lightning_deletes_no_best_checkpoint_for_one_that_was_not_saved(
    tmp_path: Path,
    store: Store,
    fails: Fails,
    fit: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails(4, 6)

    fit(tolerant(store), tmp_path / "one", monitor="loss", save_top_k=1, save_last=True)
    assert steps(store) == [8]  # the loss falls, so each is better than those before it

    sync = fails(4, 6, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckstore.integrations.directories._LAST_SAVE_S", 0.5)  # of step 8
        _, callback = fit(tolerant(Store.init(tmp_path / "other")), tmp_path / "two", monitor="loss", save_top_k=1)
    other = Store.open(tmp_path / "other")

    assert steps(other) == [2]
    assert [name for name in os.listdir(tmp_path / "two" / "ckpt") if name.endswith(".ckpt")] == ["epoch=0-step=2.ckpt"]
    assert not os.path.exists(callback.best_model_path)  # what ModelCheckpoint takes for saved
    assert [
        one
        for one in caplog.messages
        if one.startswith("3 saves failed; the last checkpoint saved by this process: main@2")
    ]
    sync.arm(0, 0)
    sync.let_go()
    other.gc()
    check_store(other.path)


@pytest.mark.parametrize("limit", [{"max_steps": 8}, {"max_steps": -1, "max_epochs": 4}])
def test_the_last_save_of_lightning_has_more_patience(
    tmp_path: Path, store: Store, fails: Fails, fit: Callable[..., Any], limit: dict[str, int]
) -> None:
    store.config.save_retries = 0
    sync = fails(8, tries=2)

    fit(Store.open(store.path), tmp_path, options=limit)

    assert len(sync.failed) == 2
    assert steps(store) == [2, 4, 6, 8]


def test_the_save_of_lightning_after_an_exception_has_more_patience(
    tmp_path: Path, store: Store, fails: Fails, fit: Callable[..., Any]
) -> None:
    store.config.save_retries = 0
    sync = fails(5, tries=2)

    with pytest.raises(RuntimeError, match="out of memory"):
        fit(Store.open(store.path), tmp_path, fails_at=5, save_on_exception=True)

    assert len(sync.failed) == 2
    assert steps(store) == [2, 4, 5]


def test_lightning_ends_when_too_many_saves_in_a_row_have_failed(
    tmp_path: Path, store: Store, fails: Fails, fit: Callable[..., Any]
) -> None:
    fails(4, 6, 8)

    with pytest.raises(SaveFailed, match="main@6"):
        fit(tolerant(store, most=1), tmp_path)

    assert steps(store) == [2]


@pytest.mark.usefixtures("saver_fails")
def test_lightning_goes_on_over_saves_in_the_background_that_fail(
    tmp_path: Path, store: Store, fit: Callable[..., Any]
) -> None:
    with tolerant(store) as training:
        fit(training, tmp_path, background=True)

    assert steps(store) == [6, 8]
    assert sorted(name for name in os.listdir(tmp_path / "ckpt")) == ["epoch=2-step=6.ckpt", "epoch=3-step=8.ckpt"]


# ---------------------------------------------------------------- Transformers


def trained(cls: Any, folder: Path, store: Store, **arguments: Any) -> Any:
    require_transformers()
    trainer = tiny_trainer.make(cls, folder, store, **arguments)
    trainer.train()
    return trainer


def test_the_trainer_goes_on_and_its_directory_that_is_not_in_the_store_stays(
    tmp_path: Path, store: Store, fails: Fails
) -> None:
    require_transformers()
    fails(4)

    trainer = trained(tiny_trainer.mixed(), tmp_path / "out", tolerant(store), save_total_limit=1)

    assert trainer.state.global_step == 6
    assert trainer.ckstore_last.step == 6
    assert steps(store) == [2, 6]
    assert (tmp_path / "out" / "checkpoint-6").is_dir()


def test_the_callback_of_the_trainer_goes_on(tmp_path: Path, store: Store, fails: Fails) -> None:
    require_transformers()
    from transformers import Trainer

    from ckstore.integrations.transformers import CkstoreCallback

    fails(6)
    store.config.wait_for_space_s = 0
    callback = CkstoreCallback(tolerant(store))
    # The last save is tried for 20 s: shorter here.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckstore.integrations.directories._LAST_SAVE_S", 0.5)
        trained(Trainer, tmp_path / "out", None, callbacks=[callback], save_total_limit=1)  # type: ignore[arg-type]

    assert callback.last is not None
    assert callback.last.step == 4
    # Neither the one that is not in the store nor, for its sake, the one before it was deleted.
    assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-4", "checkpoint-6"]


@pytest.mark.parametrize("saves", ["files", "state"])
def test_the_last_save_of_the_trainer_has_more_patience(tmp_path: Path, store: Store, fails: Fails, saves: str) -> None:
    require_transformers()
    store.config.save_retries = 0
    sync = fails(6, tries=2)

    trained(tiny_trainer.native(saves), tmp_path / "out", Store.open(store.path))

    assert len(sync.failed) == 2
    assert steps(store) == [2, 4, 6]


def test_a_best_state_that_was_not_saved_is_named_at_the_end(tmp_path: Path, store: Store, fails: Fails) -> None:
    require_transformers()
    fails(6)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        patch.setattr("ckstore.integrations.directories._LAST_SAVE_S", 0.5)
        trainer = trained(
            tiny_trainer.native("state"),
            tmp_path / "out",
            tolerant(store),
            load_best_model_at_end=True,
            eval_strategy="steps",
            eval_steps=2,
            metric_for_best_model="eval_loss",
            learning_rate=1e-2,
        )

    assert trainer.state.global_step == 6
    assert steps(store) == [2, 4]
    assert trainer.state.best_global_step == 6
    assert [one for one in seen if "the save of the best one, of step 6, failed" in str(one.message)]
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.usefixtures("saver_fails")
def test_the_trainer_goes_on_over_saves_in_the_background_that_fail(tmp_path: Path, store: Store) -> None:
    require_transformers()
    with tolerant(store) as training:
        trainer = trained(tiny_trainer.native("background"), tmp_path / "out", training)

    assert trainer.ckstore_last.step == 6
    assert steps(store) == [6]


# ---------------------------------------------------------------- accelerate


def test_accelerate_goes_on_and_deletes_no_directory_for_one_that_is_not_in_the_store(
    tmp_path: Path, store: Store, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(importlib.util.find_spec("accelerate") is not None, "needs accelerate")
    from tests.integrations import tiny_accelerate

    monkeypatch.setattr(tiny_accelerate, "EPOCHS", 3)
    fails(2)

    with pytest.raises(AssertionError):  # its loop looks whether each step was committed; the last was not
        tiny_accelerate.train(tolerant(store), tmp_path / "out", total_limit=1)

    assert steps(store) == [0, 1]
    assert sorted(os.listdir(tmp_path / "out" / "checkpoints")) == ["checkpoint_1", "checkpoint_2"]


# ---------------------------------------------------------------- torch.distributed.checkpoint


def test_dcp_tries_again_and_returns_no_checkpoint_where_it_may_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.integrations import dcp

    sync = FailingSync()
    monkeypatch.setattr(os, "fsync", sync)
    state = {"w": torch.arange(300_000.0)}
    sync.arm(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that there is no group
        first = dcp.save(store, state, 1)
        sync.arm(1, FOR_GOOD)
        second = dcp.save(store, state, 2, on_failure="warn", retries=0)
        with pytest.raises(SaveFailed):
            dcp.save(store, {"w": state["w"] + 1}, 3, retries=1)
        with pytest.raises(Exception, match="needs a Store"):
            dcp.save(store.path, state, 2, on_failure="warn")
    sync.arm(0, 0)
    sync.let_go()

    assert isinstance(first, CheckpointInfo)
    assert isinstance(second, NotSaved)
    assert second.name == "main@2"
    assert steps(store) == [1]


def test_dcp_goes_on_over_saves_in_the_background_that_fail(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch.distributed.checkpoint.staging import BlockingAsyncStager

    from ckstore.integrations import dcp

    sync = FailingSync()
    monkeypatch.setattr(os, "fsync", sync)
    training = tolerant(store, most=1)

    def save(step: int, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, that there is no group
            state = {"w": torch.arange(300_000.0) + step}
            return dcp.async_save(training, state, step, on_failure="warn", **options).result(60)

    sync.arm(1, FOR_GOOD)
    first = save(1)
    with pytest.raises(SaveFailed, match="main@2"):  # one in a row at most
        save(2)
    sync.arm(0, 0)
    save(3)
    sync.arm(1, FOR_GOOD)
    fourth = save(4)
    sync.arm(0, 0)
    sync.let_go()

    assert (type(first), first.name, first.in_a_row) == (NotSaved, "main@1", 1)
    assert (type(fourth), fourth.name, fourth.in_a_row) == (NotSaved, "main@4", 1)
    assert [one for one in caplog.messages if one.startswith("main@1 was not saved: saving main@1 failed")]
    assert steps(store) == [3]
    with pytest.raises(BadInput, match="excludes async_stager"):
        save(5, async_stager=BlockingAsyncStager())
    with pytest.raises(BadInput, match="needs a Store"):
        dcp.async_save(store.path, {}, 5, on_failure="warn")
    store.gc()
    check_store(store.path)
