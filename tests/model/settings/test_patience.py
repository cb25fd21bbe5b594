"""How long a save is tried again: laws over all policies and failures."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.settings.patience import AS_SET, AskedPatience, Failure, SavePatience, Tries

FAILURES = st.sampled_from(["storage", "space", "no room"])
POLICIES = st.builds(
    SavePatience, st.integers(0, 5), st.floats(0, 300), st.none() | st.floats(0, 300, allow_subnormal=False)
)


def played(patience: SavePatience, failures: list[Failure], took_s: float, end_s: float) -> tuple[int, float]:
    """Return after how many tries a save gives up that never works, and when its last try began."""
    tries, now_s, count = Tries(100.0), 100.0, 1
    for failure in failures:
        failed_s = now_s + took_s
        pause_s = tries.pause_s(failure, patience, failed_s, end_s)
        if pause_s is None:
            break
        assert 0 < pause_s <= 30
        now_s = failed_s + pause_s
        count += 1
    return count, now_s - 100


@given(POLICIES, st.lists(FAILURES, min_size=99, max_size=99), st.floats(0.001, 50), st.floats(100, 1000))
def test_no_save_is_tried_without_end(
    patience: SavePatience, failures: list[Failure], took_s: float, end_s: float
) -> None:
    count, last_s = played(patience, failures, took_s, end_s)

    assert count < len(failures)
    assert last_s <= end_s - 100 + 1e-6
    if patience.try_for_s is not None:
        assert last_s <= patience.try_for_s + 1e-6
    else:
        assert last_s <= patience.wait_for_space_s + (patience.retries + 1) * (30 + took_s) + 1e-6


@given(st.integers(0, 8))
def test_a_failure_of_the_storage_is_followed_by_so_many_tries(retries: int) -> None:
    assert played(SavePatience(retries), ["storage"] * 20, 1.0, math.inf)[0] == retries + 1


def test_a_disk_that_is_seen_to_be_full_is_waited_for_and_nothing_else() -> None:
    assert played(SavePatience(5), ["no room"] * 9, 0.1, math.inf)[0] == 1
    count, last_s = played(SavePatience(0, wait_for_space_s=60), ["no room"] * 99, 0.1, math.inf)
    assert count > 3
    assert last_s == pytest.approx(60, abs=1)


def test_waiting_for_space_uses_up_no_retry() -> None:
    tries, patience = Tries(0.0), SavePatience(1, wait_for_space_s=10)

    assert [tries.pause_s(one, patience, 1.0) for one in ("space", "no room", "space")] == [0.25, 1.0, 4.0]
    assert tries.pause_s("storage", patience, 2.0) is not None
    assert tries.pause_s("storage", patience, 3.0) is None


def test_until_a_time_every_failure_is_followed_by_a_try_and_none_after_it() -> None:
    patience = SavePatience(0, 0.0, try_for_s=20.0)

    for failure in ("storage", "space", "no room"):
        count, last_s = played(patience, [failure] * 99, 0.1, math.inf)
        assert count >= 4
        assert last_s == pytest.approx(20, abs=0.2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"retries": 1.0},
        {"retries": True},
        {"retries": 10**6},
        {"wait_for_space_s": -1},
        {"wait_for_space_s": "60"},
        {"wait_for_space_s": math.nan},
        {"try_for_s": math.inf},
    ],
)
def test_a_patience_that_cannot_be_meant_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(wrong))} must be"):
        AskedPatience(**wrong).check()


def test_what_a_caller_does_not_say_the_settings_say() -> None:
    settings = SavePatience(7, 60.0)

    assert AS_SET.over(settings) == settings
    assert AskedPatience(0).over(settings) == SavePatience(0, 60.0)
    assert AskedPatience(wait_for_space_s=1.0, try_for_s=9.0).over(settings) == SavePatience(7, 1.0, 9.0)
    assert AS_SET.until(math.inf) == AS_SET
    assert AS_SET.until(-3.0).try_for_s == 0.0
    assert AskedPatience(try_for_s=5.0).until(100.0).try_for_s == 5.0
