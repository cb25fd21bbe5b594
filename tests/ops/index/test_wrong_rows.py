"""What the rows of the catalog say is believed where they are as they were written, of the directory that is there."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckstore import Best, CheckpointInfo, CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import NoSuchRef
from tests.support.catalog_rows import change, columns_of, flipped, values_of
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.examples import examples
from tests.support.look import directory_of
from tests.support.stores import check_store

if TYPE_CHECKING:
    from pathlib import Path

DAMAGED = "1 row of the catalog is damaged"


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


def fill(store: Store) -> list[CheckpointInfo]:
    for step in range(1, 5):
        store.save(state(step), step, metrics={"loss": 1 / step}, message="naïve \0", metadata={"lr": step})
    store.tag("best", 4)
    return store.checkpoints()


@pytest.mark.parametrize("named", ["by its id", "as the one before"])
@pytest.mark.parametrize("what", ["dir_inode", "manifest_inode", "both"])
@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_directory_that_was_replaced_by_hand_is_seen_at_once(
    store: Store, tmp_path: Path, what: str, opened: str, named: str
) -> None:
    fill(store)
    with Store.init(tmp_path / "elsewhere") as other:
        wanted = other.save(state(77), 4, metrics={"loss": 77.0})
        there = directory_of(other, 4)
    former = checkpoint_dir(store.path, "main", 4)
    shutil.rmtree(former)
    place = former.with_name(there.name) if named == "by its id" else former
    shutil.copytree(there, place)
    # As on a filesystem that gives the numbers of what was removed to what comes next.
    for column, path in {"dir_inode": place, "manifest_inode": place / "manifest.json"}.items():
        if what in (column, "both"):
            change(store.path, "checkpoints", column, path.stat().st_ino, where="step = 4", forged=True)
    with store if opened == "before" else Store.open(store.path) as handle:
        if named == "by its id":
            assert handle.info(4).id == wanted.id
            assert wanted.id in [info.id for info in handle.checkpoints()]
            assert np.array_equal(handle.load(4)["w"], state(77)["w"])
        else:  # no checkpoint has a name that does not fit its id
            for ref in (4, "best", wanted.id):
                with pytest.raises(NoSuchRef):
                    handle.load(ref)
            assert [info.step for info in handle.checkpoints()] == [1, 2, 3]

    Store.open(store.path)
    ids = values_of("checkpoints", "manifest_id", store.path)
    assert (len(ids), ids.count(wanted.id)) == ((4, 1) if named == "by its id" else (3, 0))
    shutil.rmtree(place)  # its blobs are no links


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_bit_in_a_row_is_found_said_once_and_mended(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    with Store.init(tmp_path_factory.mktemp("rows") / "s") as store:
        expected = fill(store)
        column = data.draw(st.sampled_from(columns_of("checkpoints", store.path)))
        step = data.draw(st.integers(1, 4))
        (value, *_) = values_of("checkpoints", column, store.path)
        value = values_of(f"checkpoints WHERE step = {step}", column, store.path)[0]
        wrong = flipped(value, data.draw(st.integers(0, 400)))
        if not change(store.path, "checkpoints", column, wrong, where=f"step = {step}"):
            return

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            answers = [store.checkpoints(), [store.latest()], store.checkpoints()]
        assert answers == [expected, expected[-1:], expected]
        assert [str(warning.message).partition(";")[0] for warning in said] == [DAMAGED]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Store.open(store.path) as again:  # the row is mended
                assert again.checkpoints() == expected
        check_store(store.path)


def test_opening_says_which_rows_it_wrote_again(store: Store) -> None:
    expected = fill(store)
    change(store.path, "checkpoints", "metrics", '{"loss":9}', where="step = 2")

    with pytest.warns(CkstoreWarning, match=DAMAGED):
        opened = Store.open(store.path)

    assert opened.checkpoints() == expected
    assert opened._context.catalog.check() == []


def test_a_run_of_an_invalid_name_leaves_no_rows(store: Store) -> None:
    expected = fill(store)
    change(store.path, "checkpoints", "run", "mbin", where="step = 2")

    with pytest.warns(CkstoreWarning, match=DAMAGED):
        Store.open(store.path)

    assert store.checkpoints() == expected
    assert values_of("checkpoints", "run", store.path) == ["main"] * 4


def test_a_store_that_is_only_read_believes_no_damaged_row(store: Store) -> None:
    expected = fill(store)
    change(store.path, "checkpoints", "sequence", 2**50, where="step = 2")

    with Store.open(store.path, readonly=True) as reader:
        with pytest.warns(CkstoreWarning, match=DAMAGED):
            listed = reader.checkpoints()
        assert [info.id for info in listed] == [info.id for info in expected]
        assert reader.info("latest").id == expected[-1].id
    assert 2**50 in values_of("checkpoints", "sequence", store.path)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")  # of what is not a tag by its form
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(column="name", bit=0)
@given(column=st.sampled_from(["name", "run", "step"]), bit=st.integers(0, 60))
def test_a_wrong_row_of_a_tag_is_harmless_since_tags_are_read_from_refs(
    tmp_path_factory: pytest.TempPathFactory, column: str, bit: int
) -> None:
    with Store.init(tmp_path_factory.mktemp("tags") / "s") as store:
        expected = fill(store)
        (value,) = values_of("tags", column, store.path)
        change(store.path, "tags", column, flipped(value, bit), where="1")

        assert store.checkpoints() == expected
        assert store.info("best") == expected[-1]
        with Store.open(store.path) as again:
            assert again.checkpoints() == expected
        assert values_of("tags", column, store.path) == [value]


@pytest.mark.parametrize("forged", [False, True])
def test_a_metric_that_only_a_wrong_row_lacks_is_taken(store: Store, forged: bool) -> None:
    store.save(state(1), 1, metrics={"acc": 1.0})
    store.save(state(2), 2, metrics={"loss": 1.0})
    assert change(store.path, "checkpoints", "metrics", '{"loss":1}', where="step = 1", forged=forged)
    policy = RetentionPolicy(keep_best=Best("acc", "max"))

    store.config.retention = policy

    assert store.config.retention == policy
