"""What callers say is checked, copied, and read back as they said it."""

import enum
import fractions
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.canonical import canonical_json
from ckstore.model.manifest.describe import (
    METADATA_MAX_DEPTH,
    check_metadata,
    decoded_metadata,
    describe,
    encode_metadata,
)
from tests.model.manifests import body_of, framed, texts

keys = texts.filter(lambda k: not k.startswith("$"))
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda c: st.lists(c, max_size=3) | st.dictionaries(keys, c, max_size=3),
    max_leaves=8,
)


def _through_json(encoded: dict[str, Any]) -> dict[str, Any]:
    return dict(body_of(framed(canonical_json(encoded))))


def _same(one: Any, other: Any) -> bool:
    """Equal with equal types; nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[k], other[k]) for k in one)
    return bool(one == other)


@given(metadata=st.dictionaries(keys, values, max_size=3))
def test_metadata_comes_back_through_json(metadata: dict[str, Any]) -> None:
    encoded = encode_metadata(metadata)

    assert _same(decoded_metadata(encoded), metadata)
    back = _through_json(encoded)
    assert check_metadata(back, "x") == encoded
    assert decoded_metadata(back).keys() == metadata.keys()


def test_integers_of_any_size_come_back() -> None:
    huge = [10**6000, -(10**6000), 2**53 + 1, 10**4000, 10**8000 + 5]  # str() refuses more than 4300 digits
    encoded = encode_metadata({"n": huge})

    same = decoded_metadata(check_metadata(_through_json(encoded), "x"))["n"] == huge
    assert same


def test_metadata_is_a_copy_and_tuples_come_back_as_lists() -> None:
    inner = [1]
    description = describe(None, {"a": (inner, 2)}, "", None)
    inner.append(2)

    assert decoded_metadata(description.metadata) == {"a": [[1], 2]}


class _Colour(enum.StrEnum):
    RED = "red"


class _Level(enum.IntEnum):
    HIGH = 3


def test_members_of_enums_become_what_they_are() -> None:
    description = describe({"level": _Level.HIGH}, {_Colour.RED: [_Colour.RED, _Level.HIGH]}, "", None)

    assert canonical_json(description.metadata) == b'{"red":["red",3]}'
    assert type(description.metadata["red"][1]) is int
    assert type(description.metrics["level"]) is int


@pytest.mark.parametrize(
    "metadata, message",
    [
        ({"a": {"b": [1, {2}]}}, r"^metadata\['a'\]\['b'\]\[1\]: wanted a JSON-like value, got set \{2\}"),
        ({"t": torch.zeros(1)}, r"^metadata\['t'\]: wanted a JSON-like value, got Tensor"),
        ({"x": np.float32(1)}, r"^metadata\['x'\]: .* got float32"),
        ({"a": {1: 2}}, r"^metadata\['a'\]: wanted str keys, got int 1"),
        ({"$a": 1}, r"^metadata: a key may not start with \$, got '\$a'"),
        ({"a": "\ud83d\ude00"}, r"^metadata\['a'\]: .* two surrogates"),
        ({"\ud83d\ude00": 1}, "^metadata: .* two surrogates"),
        ([1], "^metadata: wanted a dict, got list"),
    ],
)
def test_other_metadata_is_refused_with_its_path(metadata: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        describe(None, metadata, "", None)


def test_metadata_may_be_a_hundred_levels_deep_and_a_cycle_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(METADATA_MAX_DEPTH - 2):
        deep = [deep]
    encoded = describe(None, {"a": deep}, "", None).metadata

    assert decoded_metadata(check_metadata(_through_json(encoded), "x")) == {"a": deep}
    with pytest.raises(BadInput, match="wanted at most 100 levels"):
        describe(None, {"a": [deep]}, "", None)
    with pytest.raises(BadInput, match="wanted at most 100 levels"):
        check_metadata({"a": [deep]}, "x")
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(BadInput, match="or a cycle"):
        describe(None, {"a": cycle}, "", None)


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**60) - 1, np.int64(2**53 + 1), np.uint64(2**64 - 1), torch.tensor(2**53 + 1)]
)
def test_an_integer_that_a_float_would_round_is_refused(value: Any) -> None:
    with pytest.raises(BadInput, match=r"metrics\['tokens'\]: wanted an integer .* exactly, got .*give it in metadata"):
        describe({"tokens": value}, None, "", None)

    assert describe({"tokens": 2**60}, {"tokens": 2**53 + 1}, "", None).metrics == {"tokens": 2.0**60}


exact_integers = st.integers().filter(lambda value: abs(value) < 2**1000 and int(float(value)) == value)


@given(metrics=st.dictionaries(texts, exact_integers | st.floats(), max_size=4))
def test_metrics_are_the_numbers_that_were_given(metrics: dict[str, int | float]) -> None:
    found = describe(metrics, None, "", None).metrics

    assert list(found) == list(metrics)
    for name, value in metrics.items():
        if isinstance(value, int) and abs(value) <= 2**53:
            assert _same(found[name], value)
        else:
            assert _same(found[name], float(value))


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.5),
        np.float16(0.5),
        torch.tensor(0.5),
        torch.tensor(0.5, dtype=torch.bfloat16),
        torch.tensor(0.5, requires_grad=True),
        np.array(0.5),
        fractions.Fraction(1, 2),
    ],
)
def test_whatever_is_one_real_number_is_a_metric(value: Any) -> None:
    with warnings.catch_warnings(action="error"):
        found = describe({"loss": value}, None, "", None).metrics["loss"]

    assert type(found) is float
    assert found == 0.5


@pytest.mark.parametrize(
    "value, message",
    [
        (True, "wanted a real number, got bool True"),
        (np.True_, "wanted a real number, got bool"),
        (torch.tensor(True), "wanted a real number, got Tensor"),
        (1j, "wanted a real number, got complex"),
        (np.complex64(1), "wanted a real number, got complex64"),
        (torch.tensor(1j), "wanted a real number, got Tensor"),
        (torch.ones(1), r"wanted one number, got the shape \(1,\)"),
        (np.ones((2, 1)), r"wanted one number, got the shape \(2, 1\)"),
        (torch.tensor(1.0, device="meta"), "wanted a real number, got Tensor \\("),
        (None, "wanted a real number, got NoneType"),
        ("0.5", "wanted a real number, got str '0.5'"),
        (10**400, "wanted a real number, got int \\("),
    ],
)
def test_what_is_not_one_real_number_is_refused_with_its_name(value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=rf"^metrics\['loss'\]: {message}") as caught:
        describe({"loss": value}, None, "", None)

    assert "give an int or a float" in caught.value.hint


@pytest.mark.parametrize(
    "arguments, message",
    [
        (({1: 2}, None, "", None), "^metrics: wanted str keys, got int 1"),
        (([("a", 1)], None, "", None), "^metrics: wanted a dict of name -> number, got list"),
        ((None, None, b"m", None), "^message: wanted a str, got bytes"),
        ((None, None, 10**5000, None), "^message: wanted a str, got int"),
        ((None, None, None, None), "^message: wanted a str, got NoneType"),
        ((None, None, "\ud83d\ude00", None), "^message: .* two surrogates"),
        ((None, None, "", "main@3"), "^parent: wanted the id of a checkpoint or None, got 'main@3'"),
        ((None, None, "", 7), "^parent: wanted the id of a checkpoint or None, got 7"),
    ],
)
def test_other_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        describe(*arguments)


def test_nothing_said_is_an_empty_description() -> None:
    description = describe(None, None, "", None)

    assert (description.metrics, description.metadata, description.message, description.parent) == ({}, {}, "", None)
