"""`best:METRIC` names the best checkpoint of a run by a metric, as retention judges it."""

from __future__ import annotations

import numpy as np
import pytest

from ckstore import AmbiguousRef, BadInput, Best, NoSuchRef, RetentionPolicy, Store
from tests.support.look import directory_of


def save(store: Store, step: int, run: str = "main", **metrics: float) -> None:
    store.save({"w": np.full(4, step)}, step=step, run=run, metrics=metrics)


def test_the_smallest_is_best_by_default_and_of_equal_ones_the_newest(store: Store) -> None:
    for step, loss in enumerate([3.0, 1.0, 1.0, 2.0, float("nan")]):
        save(store, step, loss=loss, acc=-loss)

    assert store.info("best:loss").step == 2
    assert store.info("main@best:loss:max").step == 0
    assert store.info("best:acc:max").step == 2
    found = store.best("loss")
    assert found is not None
    assert found == store.info("best:loss")
    assert store.best("other") is None
    assert store.load("best:loss")["w"][0] == 2


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
        store.info("main@best:los")
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
    assert RetentionPolicy(keep_best="val") == RetentionPolicy(keep_best=Best("val"))
    assert RetentionPolicy(keep_best=["val", "acc:max:2"]).bests == (Best("val"), Best("acc", "max", 2))
    with pytest.raises(BadInput, match="wanted METRIC"):
        RetentionPolicy(keep_best="acc:max:x")
