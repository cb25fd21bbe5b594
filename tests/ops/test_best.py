"""`best:METRIC` names the best checkpoint of a run by a metric, as retention judges it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ckstore import AmbiguousRef, BadInput, Best, NoSuchRef, RetentionPolicy, Store
from tests.support.look import directory_of
from tests.support.stores import check_store


def save(store: Store, step: int, run: str = "main", **metrics: float) -> None:
    store.save({"w": np.full(4, step)}, step=step, run=run, metrics=metrics)


def test_the_best_is_by_the_name_of_the_metric_or_by_the_mode_and_of_equal_ones_the_newest(store: Store) -> None:
    for step, loss in enumerate([3.0, 1.0, 1.0, 2.0, float("nan")]):
        save(store, step, loss=loss, acc=-loss)

    assert store.info("best:loss").step == 2
    assert store.info("main@best:loss:max").step == 0
    assert store.info("best:loss:min") == store.info("best:loss")
    assert store.info("best:acc").step == store.info("best:acc:max").step == 2
    assert store.info("best:acc:min").step == 0
    found = store.best("loss")
    assert found is not None
    assert found == store.info("best:loss")
    assert store.best("acc") == store.info("best:acc")
    assert store.best("acc", mode="min") == store.info("best:acc:min")
    assert store.best("other", mode="min") is None
    assert store.load("best:loss")["w"][0] == 2


def test_the_best_by_an_accuracy_stays_and_is_found(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=1, keep_best=Best("accuracy"))
    for step, accuracy in enumerate([0.50, 0.71, 0.93, 0.88, 0.62], 1):
        save(store, step, accuracy=accuracy)

    assert [info.step for info in store.checkpoints()] == [3, 5]
    assert store.load("best:accuracy")["w"][0] == 3
    check_store(store.path)


def test_a_name_that_says_no_mode_is_refused_with_both_spellings(store: Store) -> None:
    save(store, 1, val=2.0)
    store.config.retention = kept = RetentionPolicy(keep_last=1, keep_best=Best("val", mode="max"))
    attempts: dict[str, Callable[[], object]] = {
        "write mode='min' or mode='max'": lambda: Best("val"),
        "write val:min or val:max": lambda: RetentionPolicy(keep_best="val"),
        "write best:val:min or best:val:max": lambda: store.info("main@best:val"),
        "write mode='min' or mode='max' ": lambda: store.best("val"),
    }

    for hint, attempt in attempts.items():
        with pytest.raises(
            BadInput, match="the name 'val' does not say whether the smallest or the greatest"
        ) as caught:
            attempt()
        assert caught.value.hint == hint.strip()
    assert store.config.retention == kept
    assert store.info("best:val:min").step == store.info("best:val:max").step == 1


def test_annotations_count_and_a_bound_handle_means_its_run(store: Store) -> None:
    save(store, 1, run="a", loss=2.0)
    save(store, 2, run="a", loss=3.0)
    save(store, 1, run="b", loss=1.0)
    store.annotate("a@2", {"loss": 0.5})

    assert store.info("a@best:loss").step == 2
    with pytest.raises(AmbiguousRef):
        store.info("best:loss")
    bound = Store.open(store.path, run="b").best("loss")
    assert bound is not None
    assert bound.name == "b@1"


def test_a_misspelt_metric_is_refused_with_those_there(store: Store) -> None:
    save(store, 1, loss=2.0)

    with pytest.raises(NoSuchRef, match="no checkpoint of the run main has a number") as caught:
        store.info("main@best:los:min")
    assert "did you mean loss" in str(caught.value.hint)
    for wrong in ("best:", "best:loss:max:3"):
        with pytest.raises(BadInput):
            store.info(wrong)


def test_one_that_is_marked_as_damaged_is_passed_over(store: Store) -> None:
    save(store, 1, loss=1.0)
    save(store, 2, loss=2.0)
    blob = next((directory_of(store, store.info(1)) / "blobs").iterdir())
    blob.chmod(0o600)
    blob.write_bytes(bytes(blob.stat().st_size))
    store.verify(1)

    assert store.info("best:loss").step == 2
    store.save({"w": np.full(4, 1)}, step=3)  # it heals the blob
    store.verify()
    assert store.info("best:loss").step == 1


def test_a_rule_may_be_the_name_of_a_metric() -> None:
    assert RetentionPolicy(keep_best="loss") == RetentionPolicy(keep_best=Best("loss", "min"))
    assert RetentionPolicy(keep_best=["val:min", "acc:max:2"]).bests == (Best("val", "min"), Best("acc", "max", 2))
    with pytest.raises(BadInput, match="wanted METRIC"):
        RetentionPolicy(keep_best="acc:max:x")
