"""What differs between two checkpoints, by name, by pieces and by value."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckstore import Store
from ckstore.errors import DamagedBlob, NoSuchRef
from ckstore.model.reports.diff import Diff, LeafChange, PlainChange
from ckstore.ops.check.validity import why_not_valid
from ckstore.tensors.compare import largest_difference
from tests.support.damage import MIB, blobs_by_size, flip, two_part_state
from tests.support.examples import examples

ARRAYS = st.sampled_from([np.zeros(3), np.ones(3), np.ones((3, 1)), np.ones(3, np.float32), np.zeros((0, 2))])
TENSORS = st.sampled_from([torch.zeros(4), torch.ones(4), torch.arange(6).reshape(2, 3).T])
PLAIN: st.SearchStrategy[Any] = st.sampled_from(
    [1, 2, 1.0, -0.0, 0.0, math.nan, "a", "b", None, True, b"x", 2**70, np.float32(0.5), [], {}, ()]
)
VALUES = st.recursive(
    ARRAYS | TENSORS | PLAIN,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(st.sampled_from(["w", "x", "y", "z"]), VALUES, max_size=4)
FLOATS = hnp.arrays(np.float64, 7, elements=st.floats(width=64))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.init(tmp_path_factory.mktemp("diff") / "store", chunk_bytes=MIB)


def mirrored(diff: Diff) -> tuple[Any, ...]:
    other = {"added": "removed", "removed": "added", "changed": "changed"}
    changed = {(c.after, c.before, c.changed_bytes) for c in diff.changed}
    plain = {(p.name, other[p.kind], repr(p.after), repr(p.before)) for p in diff.plain}
    return set(diff.removed), set(diff.added), changed, plain, diff.unchanged_count, diff.same_content


def straight(diff: Diff) -> tuple[Any, ...]:
    changed = {(c.before, c.after, c.changed_bytes) for c in diff.changed}
    plain = {(p.name, p.kind, repr(p.before), repr(p.after)) for p in diff.plain}
    return set(diff.added), set(diff.removed), changed, plain, diff.unchanged_count, diff.same_content


@pytest.mark.property
@settings(max_examples=examples(7))
@given(one=STATES, other=STATES)
def test_a_diff_with_itself_is_empty_and_the_other_way_round_it_is_the_mirror(one: Any, other: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder, "store"), chunk_bytes=MIB)
        store.save(one, step=1)
        store.save(other, step=2)

        for step in (1, 2):
            itself = store.diff(step, step)
            assert not itself
            assert itself.same_content
            assert itself.unchanged_count == store.info(step).leaf_count
        there, back = store.diff(1, 2), store.diff(2, 1)
        assert straight(there) == mirrored(back)
        assert not (there.same_content and there)
        counted = len(there.added) + len(there.changed) + there.unchanged_count
        assert counted == store.info(2).leaf_count
        if not there and list(one) == list(other):
            assert there.same_content or orders(one) != orders(other)


def orders(value: Any) -> Any:
    """What a diff does not list: the order of keys."""
    if isinstance(value, dict):
        return [(key, orders(item)) for key, item in value.items()]
    return [orders(item) for item in value] if isinstance(value, list | tuple) else None


def test_added_removed_and_changed_tensors_are_named(store: Store) -> None:
    store.save({"a": np.zeros(4), "b": torch.zeros(3), "c": np.ones(2), "e": torch.ones(2)}, step=1)
    store.save({"b": torch.zeros(5), "c": np.ones(2), "d": np.zeros(9, np.int8), "e": torch.ones(2).bfloat16()}, step=2)

    diff = store.diff(1, 2)

    assert [leaf.name for leaf in diff.added] == ["d"]
    assert [leaf.name for leaf in diff.removed] == ["a"]
    assert [(c.name, c.before.shape, c.after.shape) for c in diff.changed] == [("b", (3,), (5,)), ("e", (2,), (2,))]
    assert (diff.changed[1].before.dtype, diff.changed[1].after.dtype) == ("float32", "bfloat16")
    assert diff.unchanged_count == 1
    assert (diff.before, diff.after) == ("main@1", "main@2")


def test_changed_bytes_are_those_of_the_chunks_that_differ(store: Store) -> None:
    big = np.zeros(5 * MIB + 3, np.uint8)
    store.save({"w": big, "small": np.zeros(10)}, step=1)
    big[2 * MIB + 5] = 1
    big[-1] = 1
    store.save({"w": big, "small": np.zeros(10)}, step=2)

    (change,) = store.diff(1, 2).changed

    assert (change.name, change.changed_bytes) == ("w", MIB + 3)
    assert store.diff(1, 2).changed_bytes == MIB + 3


def test_plain_values_and_types_of_containers_are_listed(store: Store) -> None:
    before = {
        "lr": 0.1,
        "step": 1,
        "old": None,
        "same": "x",
        "betas": [0.9, 0.99],
        "np": np.float64(2.5),
        "e": {"a": 1},
    }
    after = {"lr": 0.2, "step": 2, "new": True, "same": "x", "betas": (0.9, 0.999), "np": np.float64(3.5), "e": {}}
    store.save(before, step=1)
    store.save(after, step=2)

    assert set(store.diff(1).plain) == {
        PlainChange("lr", "changed", 0.1, 0.2),
        PlainChange("step", "changed", 1, 2),
        PlainChange("old", "removed", None, None),
        PlainChange("new", "added", None, True),
        PlainChange("betas", "changed", "list", "tuple"),
        PlainChange("betas[1]", "changed", 0.99, 0.999),
        PlainChange("np", "changed", 2.5, 3.5),
        PlainChange("e.a", "removed", 1, None),
    }


def test_an_optimizer_that_made_a_step_shows_its_counter_and_its_moments(store: Store) -> None:
    model = torch.nn.Linear(4, 2)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in (1, 2):
        model(torch.ones(1, 4)).sum().backward()
        adam.step()
        store.save({"model": model, "optimizer": adam}, step=step)
        adam.param_groups[0]["lr"] = 0.05

    diff = store.diff(1, 2, values=True)

    assert {"model.weight", "model.bias"} <= {change.name for change in diff.changed}
    assert ("optimizer.param_groups[0].lr", 0.1, 0.05) in [(p.name, p.before, p.after) for p in diff.plain]
    by_name = {change.name: change.difference for change in diff.changed}
    found = by_name["model.weight"]
    assert found is not None
    assert 0 < found.largest_absolute <= 0.11


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_the_largest_differences_of_tensors_are_told(store: Store, dtype: torch.dtype) -> None:
    one = torch.tensor([1.0, 2.0, -4.0, 0.0]).to(dtype)
    other = torch.tensor([1.0, 2.5, -8.0, 0.0]).to(dtype)
    store.save({"w": one, "i": torch.tensor([1])}, step=1)
    store.save({"w": other, "i": torch.tensor([2])}, step=2)

    weights, integers = sorted(store.diff(1, 2, values=True).changed, key=lambda change: change.name, reverse=True)

    assert weights.difference is not None
    assert weights.difference.largest_absolute == 4.0
    assert weights.difference.largest_relative == 0.5
    assert integers.difference is None
    assert all(change.difference is None for change in store.diff(1, 2).changed)


@pytest.mark.property
@given(one=FLOATS, other=FLOATS)
def test_the_largest_difference_is_that_of_a_plain_loop(one: Any, other: Any) -> None:
    found = largest_difference(one, other)
    assert found is not None
    absolute = relative = 0.0
    for a, b in zip(one.tolist(), other.tolist(), strict=True):
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        finite = math.isfinite(a) and math.isfinite(b)
        absolute = max(absolute, abs(a - b) if finite else math.inf)
        relative = max(relative, 2 * (abs(a / 2 - b / 2) / max(abs(a), abs(b))) if finite else math.inf)

    assert found.largest_absolute == absolute
    assert found.largest_relative == pytest.approx(relative)
    assert found == largest_difference(other, one)
    as_tensors = largest_difference(torch.from_numpy(one), torch.from_numpy(other))
    assert as_tensors == found


def test_complex_numbers_and_shapes_that_differ(store: Store) -> None:
    assert largest_difference(np.array([1 + 1j]), np.array([1 + 4j])).largest_absolute == 3  # type: ignore[union-attr]
    assert largest_difference(np.zeros(2), np.zeros(3)) is None
    assert largest_difference(torch.zeros(2), torch.zeros(2, dtype=torch.int64)) is None
    assert largest_difference(torch.zeros(2), np.zeros(2)) is None
    assert largest_difference("a", "b") is None


def test_without_values_no_blob_is_opened_and_with_them_damage_is_met(store: Store) -> None:
    store.save(two_part_state(1), step=1)
    store.save(two_part_state(2), step=2)
    flip(blobs_by_size(store, 2)[-1], keep_time=True)

    assert {change.name for change in store.diff(1, 2).changed} >= {"big", "small.layer3"}
    with pytest.raises(DamagedBlob, match="big"):
        store.diff(1, 2, values=False) and store.load(2)
    assert why_not_valid(store._context, store.info(2))
    store.save(two_part_state(2), step=2)


def test_a_checkpoint_that_is_not_there_is_said(store: Store) -> None:
    store.save({"a": 1}, step=1)
    with pytest.raises(NoSuchRef):
        store.diff(1, 2)


def test_views_of_one_storage_are_told_apart_where_they_do_not_share_pieces(store: Store) -> None:
    base = torch.zeros(3 * MIB, dtype=torch.uint8)
    store.save({"whole": base, "head": base[:10], "tail": base[2 * MIB :]}, step=1)
    base[5] = 1
    store.save({"whole": base, "head": base[:10], "tail": base[2 * MIB :]}, step=2)

    changed: dict[str, LeafChange] = {change.name: change for change in store.diff(1, 2).changed}

    assert set(changed) == {"whole", "head"}
    assert changed["head"].changed_bytes == 10
