"""The rules by which two recordings of a training are compared, without any process."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.training.resume_check.records import (
    KINDS,
    Ignored,
    Mismatch,
    Observation,
    Tolerance,
    compare,
    first_mismatch,
    number_distance,
    unused,
)
from ckstore.training.resume_check.tensor_distance import distance

_EXACT = Tolerance()
_NEAR = Tolerance(rtol=0.1)


def record(
    position: str = "step", step: int = 1, left_out: tuple[str, ...] = (), **values: dict[str, str]
) -> Observation:
    """Return a record; in the names of kinds a line stands for a space."""
    return Observation(position, step, {kind.replace("_", " "): found for kind, found in values.items()}, left_out)


@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
def test_the_first_kind_that_differs_is_named_and_the_others_follow(kinds: list[str]) -> None:
    before = Observation("step", 1, {kind: {"same": "1", "other": "1"} for kind in KINDS})
    after = Observation("step", 1, {kind: {"same": "1", "other": "2" if kind in kinds else "1"} for kind in KINDS})

    found = compare(before, after, 7, tolerance=_EXACT)

    first, *others = sorted(kinds, key=KINDS.index)
    assert found == Mismatch(7, first, ("other",), tuple(others))
    assert compare(before, before, 7, tolerance=_EXACT) is None


def test_what_one_record_lacks_differs_unless_its_object_is_absent() -> None:
    before = record(model={"model.w": "1"}, part={"variable ema.w": "1"}, left_out=("variable ema",))
    without = record(model={}, part={}, left_out=("variable ema",))

    assert compare(before, without, 0, tolerance=_EXACT) == Mismatch(0, "model", ("model.w",), ("part",))
    assert compare(without, before, 0, tolerance=_EXACT) == Mismatch(0, "model", ("model.w",), ("part",))
    # The variable is made in the first step.
    absent = record(model={"model.w": "1"})
    assert compare(before, absent, 0, tolerance=_EXACT) is None
    assert compare(absent, before, 0, tolerance=_EXACT) is None


def test_numbers_of_variables_do_not_count_by_themselves() -> None:
    assert compare(record(number={"step": "1"}), record(number={"step": "2"}), 0, tolerance=_EXACT) is None


def test_a_step_is_no_end_of_an_epoch_but_a_restored_state_is_compared_with_a_saved_one() -> None:
    step, end = record("step"), record("end of an epoch")
    saved, resumed = record("saved", 3, batch={"0": "1"}), record("resumed", 3)

    assert compare(step, end, 2, tolerance=_EXACT) == Mismatch(2, "position", ("end of an epoch",))
    assert compare(step, record("step", 2), 2, tolerance=_EXACT) == Mismatch(2, "position", ("step",))
    assert compare(saved, resumed, 0, tolerance=_EXACT) is None
    assert first_mismatch([step, end], [step], tolerance=_EXACT, ignored=Ignored()) is None
    found = first_mismatch([step, step], [step, end], tolerance=_EXACT, ignored=Ignored())
    assert found == Mismatch(1, "position", ("end of an epoch",))


_TENSOR = "float32[2] xxh3-1"
NEAR: dict[str, tuple[str, str, str, bool]] = {
    "a loss inside": ("loss", "1.0 float32", "1.05 float32", True),
    "a loss outside": ("loss", "1.0 float32", "1.2 float32", False),
    "a loss that is no number any more": ("loss", "1.0", "nan", False),
    "a rate inside": ("optimizer", "0.1", "0.105", True),
    "a rate outside": ("optimizer", "0.1", "0.2", False),
    "a word": ("part", "'a'", "'b'", False),
    "a tensor": ("model", _TENSOR, "float32[2] xxh3-2", True),
    "a tensor of another shape": ("model", _TENSOR, "float32[3] xxh3-2", False),
    "a tensor of another type": ("model", _TENSOR, "float64[2] xxh3-2", False),
    "a tensor of integers": ("model", "int64[2] xxh3-1", "int64[2] xxh3-2", False),
    "a gradient": ("gradient", _TENSOR, "float32[2] xxh3-2", True),
    "a batch": ("batch", "1.0", "1.0001", False),
    "a random state": ("random state", "1.0", "1.0001", False),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_tolerance_covers_numbers_and_tensors_and_nothing_else(name: str) -> None:
    kind, old, new, is_near = NEAR[name]
    before, after = Observation("step", 1, {kind: {"x": old}}), Observation("step", 1, {kind: {"x": new}})

    assert (compare(before, after, 0, tolerance=_NEAR) is None) == is_near
    assert compare(before, after, 0, tolerance=_EXACT) is not None


def test_a_tensor_that_is_too_far_differs_in_spite_of_the_tolerance() -> None:
    before = Observation("step", 1, {"model": {"w": _TENSOR}})
    after = Observation("step", 1, {"model": {"w": "float32[2] xxh3-2"}}, far={"w": {"largest_absolute": 3.0}})

    assert compare(before, after, 0, tolerance=_NEAR) == Mismatch(0, "model", ("w",))


def test_names_that_may_differ_and_random_states_without_use_are_left_aside() -> None:
    names = {"ema.w": "1", "variable meter.sum": "1", "emas.w": "1"}
    before, after = record(part=names), record(part=dict.fromkeys(names, "2"))
    states = [record(random_state={"python": "1", "torch": torch_state}) for torch_state in "12"]

    found = compare(before, after, 0, tolerance=_EXACT, ignored=Ignored(("ema", "m*")))

    assert found == Mismatch(0, "part", ("emas.w",))
    assert unused(states) == {"python"}
    later = record(random_state={"python": "2", "torch": "1"})
    assert compare(states[0], later, 0, tolerance=_EXACT, ignored=Ignored(unused=unused(states))) is None
    assert compare(states[0], later, 0, tolerance=_EXACT) == Mismatch(0, "random state", ("python",))


def test_a_record_goes_through_json() -> None:
    one = Observation("step", 2, {"loss": {"loss": "1.0"}}, ("variable ema",), {"w": {"ulps": None}})

    assert Observation.from_json(one.to_json()) == one


def _next(value: float, kind: str, count: int) -> float:
    """Return the number that is `count` representable ones further."""
    if kind == "bfloat16":
        bits = struct.unpack("<i", struct.pack("<f", value))[0] + (count << 16)
        return float(struct.unpack("<f", struct.pack("<i", bits))[0])
    number = np.dtype(kind).type(value)
    for _ in range(count):
        number = np.nextafter(number, number.dtype.type(math.inf))
    return float(number)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_the_distance_of_two_losses_is_counted_in_numbers_of_their_type(kind: str) -> None:
    near = _next(1.0, kind, 3)

    found = number_distance(f"1.0 {kind}", f"{near!r} {kind}")

    assert found == {"largest_absolute": near - 1.0, "ulps": 3, "size": 1.0}
    across = number_distance(f"{-_next(0.0, kind, 1)!r} {kind}", f"{_next(0.0, kind, 2)!r} {kind}")
    assert across["ulps"] == 3


@pytest.mark.parametrize("before, after", [("1.0", "nan"), ("1.0 float32", "1.0 float64"), ("1 int64", "2 int64")])
def test_a_distance_without_representable_numbers_between_has_no_count(before: str, after: str) -> None:
    assert number_distance(before, after)["ulps"] is None
    assert number_distance("'a'", "1.0") == {}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_the_distance_of_two_tensors_is_that_of_their_furthest_elements(dtype: str) -> None:
    kind: Any = getattr(torch, dtype)
    before = torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64).to(kind)
    after = before.clone()
    size = before.element_size()
    bits = after.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    bits[0] += 2
    bits[1] += 1  # further from zero

    found = distance(before, after)

    assert found["ulps"] == 2
    wide = (before.to(torch.float64) - after.to(torch.float64)).abs().max().item()
    assert (found["largest_absolute"], found["size"]) == (wide, 1.0)


def test_the_distance_of_arrays_and_of_what_cannot_be_compared() -> None:
    one = np.array([1.0, 2.0], np.float32)

    assert distance(one, np.nextafter(one, np.float32(9)))["ulps"] == 1
    assert distance(one, np.array([1.0, np.inf], np.float32))["ulps"] is None
    assert distance(one, np.array([1.0], np.float32)) == {}
    assert distance(torch.tensor([1]), torch.tensor([2])) == {}
    assert distance(torch.zeros(0), torch.zeros(0)) == {"largest_absolute": 0.0, "ulps": None, "size": 0.0}
    lowest, highest = (torch.tensor([sign * torch.finfo(torch.float64).max], dtype=torch.float64) for sign in (-1, 1))
    assert distance(lowest, highest)["ulps"] == 2 * (0x7FEFFFFFFFFFFFFF)
