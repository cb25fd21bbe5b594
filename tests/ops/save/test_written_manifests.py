"""Manifests: a state or a file around the limits of the format is refused, or it comes back."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import BadInput, CannotStore
from tests.containers.files import safetensors_file
from tests.support.states import assert_same

pytestmark = [pytest.mark.property]

AROUND = st.sampled_from([0, 1, 2, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**62])
SHAPES = st.lists(AROUND, max_size=3).map(tuple)
DIGITS = st.sampled_from([1, 15, 16, 17, 4299, 4300, 4301, 9000])
"""Of an integer; Hypothesis cannot show one of more than 4300."""


@st.composite
def _tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(SHAPES)
    strides = tuple(draw(AROUND) if size == 1 else 0 for size in shape)
    try:
        return torch.zeros(1, dtype=torch.uint8).as_strided(shape, strides)
    except RuntimeError:  # torch takes no such shape
        assume(False)
        raise


@st.composite
def _arrays(draw: st.DrawFn) -> Any:
    try:
        return np.empty((*draw(SHAPES), 0), draw(st.sampled_from(["|u1", "<f8", "<U9"])))
    except ValueError:  # NumPy takes no such shape
        assume(False)
        raise


def nested(levels: int, kind: str) -> Any:
    """Return containers of a kind, one in another."""
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value} if kind == "dict" else _ordered(value, kind)
    return value


def _ordered(value: Any, kind: str) -> Any:
    made = OrderedDict(a=value if kind == "odict" else 1)
    if kind == "attribute":
        made.below = value  # type: ignore[attr-defined]
    return made


STATES = st.fixed_dictionaries(
    {},
    optional={
        "tensor": _tensors(),
        "array": _arrays(),
        "keys": st.lists(DIGITS, max_size=2),
        "nested": st.builds(nested, st.integers(95, 102), st.sampled_from(["list", "dict", "odict", "attribute"])),
        "number": DIGITS,
    },
)


def is_accepted(store: Store, write: Callable[[], object]) -> bool:
    """Write; after a refusal there must be neither a checkpoint nor anything in staging."""
    before = store.checkpoints()
    try:
        write()
    except (CannotStore, BadInput):
        assert store.checkpoints() == before
        assert not [*(store.path / "staging").iterdir()]
        return False
    return True


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.init(tmp_path_factory.mktemp("manifests") / "store")


@given(state=STATES)
def test_a_state_around_the_limits_comes_back_or_is_refused(store: Store, state: dict[str, Any]) -> None:
    state["keys"] = {10**digits - 1: b"x" * 300 for digits in state.get("keys", ())}
    state["number"] = 10 ** state.get("number", 1)
    if is_accepted(store, lambda: store.save(state, step=1, if_exists="replace")):
        found: Any = store.load(1)
        store.load(1, select=lambda _: True)
        one, other = state.pop("tensor", None), found.pop("tensor", None)

        if one is not None:  # comparing its elements would take as much memory as they would fill
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            steps = zip(one.shape, one.stride(), other.stride(), strict=True)
            assert not one.numel() or all(size == 1 or a == b for size, a, b in steps)
        assert_same(state, found)


@given(shape=SHAPES)
def test_a_file_of_safetensors_with_any_shape_comes_back(
    store: Store, tmp_path_factory: Any, shape: tuple[int, ...]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    data = safetensors_file({"w": {"dtype": "U8", "shape": [*shape, 0], "data_offsets": [0, 0]}})
    (folder / "model.safetensors").write_bytes(data)

    if is_accepted(store, lambda: store.commit(folder, step=2, if_exists="replace")):
        store.checkout(2, folder / "out")

        assert (folder / "out" / "model.safetensors").read_bytes() == data


@given(mtime_s=st.integers(-(2**31), 2**34 - 1))
def test_a_file_of_any_time_comes_back_with_it(store: Store, tmp_path_factory: Any, mtime_s: int) -> None:
    folder = tmp_path_factory.mktemp("times")
    (folder / "file").write_bytes(b"x")
    os.utime(folder / "file", (mtime_s, mtime_s))
    kept_ns = (folder / "file").stat().st_mtime_ns  # the filesystem may know no such time

    store.commit(folder, step=3, times=True, if_exists="replace")
    store.checkout(3, folder / "out")

    assert (folder / "out" / "file").stat().st_mtime_ns == kept_ns
