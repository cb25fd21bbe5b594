"""Which tensors make a checkpoint unhealthy, and which parts no longer change: the rules of ADR 0033."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.manifest.health import Health, NonFinite, Stillness, read_health


@pytest.mark.parametrize(
    "nan, inf, usual, sick",
    [(0, 0, 0, False), (1, 0, 0, True), (0, 5, 5, False), (0, 6, 5, True), (0, 4, 5, False), (1, 5, 5, True)],
)
def test_nan_is_sick_and_infinite_values_are_where_they_were_not_usual(
    nan: int, inf: int, usual: int, sick: bool
) -> None:
    assert NonFinite("w", nan, inf, usual).is_sick is sick


def test_why_a_checkpoint_is_unhealthy_names_the_first_tensor_and_counts_the_others() -> None:
    mask, first, second = NonFinite("mask", 0, 3, 3), NonFinite("a", 1, 0, 0), NonFinite("b", 2, 7, 0)

    assert Health((mask,)).unhealthy == ""
    assert Health((mask, first)).unhealthy == "a has 1 NaN value"
    assert Health((second, first)).unhealthy == "b has 2 NaN and 7 infinite values, and 1 more tensor"
    assert len(Health((NonFinite("x" * 10_000, 1, 0, 0),)).unhealthy) < 300


def after(equal: list[bool]) -> Health:
    """Return the health of a state with a part that moves always, and one that was equal to its parent's so."""
    part, other = Stillness(), Stillness()
    for one in equal:
        part = part.then(equal=one, advanced=True)
        other = other.then(equal=False, advanced=True)
    return Health((), {"model": part, "optimizer": other})


@pytest.mark.parametrize(
    "equal, unchanged",
    [
        ([], ()),
        ([True] * 9, ()),  # frozen from the first save on
        ([False, True], ()),  # once may be the end of a training
        ([False, True, True], ("model",)),
        ([False, True, True, True], ("model",)),
        ([False, True, True, False], ()),
        # It has paused for two before, as an average that is updated at each third save.
        ([False, True, True, False, True, True], ()),
        ([False, True, True, False, True, True, True], ("model",)),
    ],
)
def test_a_part_that_changed_before_and_pauses_longer_than_ever_is_unchanged(
    equal: list[bool], unchanged: tuple[str, ...]
) -> None:
    assert after(equal).unchanged == unchanged


def test_where_nothing_changes_at_all_each_part_is_unchanged_at_the_second_save_in_a_row() -> None:
    once = Stillness().then(equal=True, advanced=True)
    twice = once.then(equal=True, advanced=True)

    assert Health((), {"a": once, "b": once}).unchanged == ()
    assert Health((), {"b": twice, "a": twice}).unchanged == ("a", "b")


def test_equal_tensors_at_a_step_that_has_not_advanced_count_for_nothing() -> None:
    assert Stillness(1, 0).then(equal=True, advanced=False) == Stillness(1, 0)


COUNTS = st.integers(0, 2**40)
HEALTH = st.builds(
    Health,
    st.lists(st.builds(NonFinite, st.text(), COUNTS, COUNTS, COUNTS), max_size=4).map(tuple),
    st.dictionaries(st.text(), st.builds(Stillness, COUNTS, st.integers(-1, 9)), max_size=4),
)


@pytest.mark.property
@given(health=HEALTH)
def test_health_comes_back_from_its_json(health: Health) -> None:
    assert read_health(json.loads(json.dumps(health.to_json())), "a manifest") == health


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"nonfinite": []},
        {"nonfinite": {}, "parts": {}},
        {"nonfinite": [["w", 1, 0]], "parts": {}},
        {"nonfinite": [["w", 1, 0, -1]], "parts": {}},
        {"nonfinite": [["w", True, 0, 0]], "parts": {}},
        {"nonfinite": [[7, 1, 0, 0]], "parts": {}},
        {"nonfinite": [["w", 2**60, 0, 0]], "parts": {}},
        {"nonfinite": [], "parts": {"model": [0]}},
        {"nonfinite": [], "parts": {"model": [0, -2]}},
        {"nonfinite": [], "parts": {"model": [0.5, 0]}},
        {"nonfinite": [], "parts": []},
    ],
)
def test_what_is_no_health_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="health"):
        read_health(wrong, "a manifest")
