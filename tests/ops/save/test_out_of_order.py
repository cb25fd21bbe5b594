"""A number that was made up makes no later save unreadable, and no older checkpoint the newest."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ckstore import CheckpointInfo, RetentionPolicy, Store
from ckstore.errors import BadInput, SaveFailed
from ckstore.model.names import MAX_SEQUENCE, MAX_STEP, WIDEST_GAP
from ckstore.ops.index import sequence
from tests.support.catalog_rows import change
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.examples import examples
from tests.support.forging import forge_manifest
from tests.support.plans import plan_of

FAR = 2**52


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


def fill(store: Store, count: int = 3) -> list[CheckpointInfo]:
    return [store.save(state(step), step, metrics={"loss": step}) for step in range(1, count + 1)]


def forged(store: Store, step: int, **members: Any) -> str:
    return forge_manifest(checkpoint_dir(store.path, "main", step), **members)


@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_number_far_beyond_all_others_is_not_the_newest_and_no_save_comes_after_it(store: Store, opened: str) -> None:
    fill(store)
    wrong = forged(store, 1, sequence=FAR)

    with store if opened == "before" else Store.open(store.path) as handle:
        assert [(info.step, info.out_of_order) for info in handle.checkpoints()] == [(1, True), (2, False), (3, False)]
        assert handle.info("latest").step == 3
        assert handle.info("latest-valid").step == 3
        assert handle.save(state(4), 4).sequence == 4
        assert handle.info("latest").step == 4
        assert handle.info(1).id == handle.info(wrong).id == wrong
        assert np.array_equal(handle.load(1)["w"], state(1)["w"])


def test_verify_and_doctor_say_it(store: Store) -> None:
    fill(store)
    forged(store, 1, sequence=FAR)

    report = store.verify()
    (finding,) = [found for found in report.findings if found.kind == "order"]
    (told,) = [found for found in store.doctor().findings if found.what == "order of commits"]

    assert finding.subject == "main@1"
    assert f"the sequence number of main@1, {FAR}, is more than 2^32 above the greatest valid one, 3" in finding.what
    assert not report.ok
    assert told.level == "warning"
    store.delete("main@1")
    assert store.verify().ok


def test_it_takes_no_place_of_retention(store: Store) -> None:
    fill(store)
    forged(store, 1, sequence=FAR)

    store.prune(RetentionPolicy(keep_last=2))

    assert [info.step for info in store.checkpoints()] == [2, 3]


def test_alone_it_is_named_and_kept(store: Store) -> None:
    fill(store, 1)
    forged(store, 1, sequence=FAR)

    assert store.info("latest").step == 1
    assert Store.open(store.path).save(state(2), 2).sequence == 1
    assert store.info("latest").step == 2


# A number that no manifest may have makes the checkpoint one that is not whole.
@pytest.mark.filterwarnings(
    "ignore:latest is .* since newer checkpoints are incomplete or damaged:ckstore.CkstoreWarning"
)
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(number=2**53)
@example(number=MAX_SEQUENCE)
@example(number=WIDEST_GAP + 3)
@example(number=WIDEST_GAP + 6)  # what lies a little beyond counts as soon as enough is saved
@given(number=st.integers(1, WIDEST_GAP + 3) | st.integers(WIDEST_GAP + 6, 2**53))
def test_whatever_number_a_manifest_has_later_saves_are_read_again_and_are_the_newest(
    tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    with Store.init(tmp_path_factory.mktemp("forged") / "s") as store:
        fill(store)
        forged(store, 2, sequence=number)
        with Store.open(store.path) as handle:
            for step in (4, 5):
                info = handle.save(state(step), step)
                assert handle.latest() == info
        with Store.open(store.path) as again:
            assert again.info("latest").step == 5
            assert np.array_equal(again.load("latest")["w"], state(5)["w"])


@pytest.mark.parametrize("with_checksum", [True, False])
@pytest.mark.parametrize("number", [1, 2**31, 2**40, 2**53 - 1])
def test_whatever_number_a_row_has_the_manifest_counts(store: Store, number: int, *, with_checksum: bool) -> None:
    fill(store)
    step = 3 if number == 1 else 1
    change(store.path, "checkpoints", "sequence", number, where=f"step = {step}", forged=with_checksum)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with Store.open(store.path) as handle:
            assert handle.info("latest").step == 3
            assert handle.save(state(4), 4).sequence == 4
    assert len([warning for warning in said if "the catalog" in str(warning.message)]) == 1
    assert store.info("latest").step == 4


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("step, number", [(3, 1), (1, 2**31), (1, 2**40)])
def test_the_next_number_comes_after_those_of_the_manifests(store: Store, step: int, number: int) -> None:
    fill(store)
    change(store.path, "checkpoints", "sequence", number, where=f"step = {step}", forged=True)

    with Store.open(store.path) as handle:
        assert handle.save(state(4), 4).sequence == 4


def test_the_last_number_is_refused_with_what_to_do(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 1)
    monkeypatch.setattr(sequence, "MAX_SEQUENCE", 2)
    assert store.save(state(2), 2).sequence == 2

    with pytest.raises(SaveFailed, match="no sequence number left"):
        store.save(state(3), 3)

    assert [info.step for info in store.checkpoints()] == [1, 2]


def test_after_the_last_step_there_is_no_next_one(store: Store) -> None:
    store.save(state(1), MAX_STEP)

    with pytest.raises(
        BadInput, match=r"the run main has a checkpoint at step 9007199254740992, the highest possible step"
    ) as caught:
        store.save(state(2))

    assert "pass step=" in caught.value.hint
    assert store.save(state(2), 7).step == 7


def test_a_time_in_the_far_future_decides_only_between_equal_numbers(store: Store) -> None:
    fill(store)
    forged(store, 1, created="9999-12-31T23:59:59.999999Z", sequence=3)

    assert store.info("latest").step == 1
    assert store.save(state(4), 4).sequence == 4
    assert store.info("latest").step == 4
    assert 1 in [e.step for e in plan_of(store, RetentionPolicy(keep_within="1h")).kept]
