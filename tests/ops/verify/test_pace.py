"""A rate is kept by all readers together, and a budget begins nothing that would end too late."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.ops.pace import DutyCycle, RateLimiter, ReadBudget


class Clock:
    """A clock that only moves when a thread sleeps or works."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


@pytest.mark.property
@given(sizes=st.lists(st.integers(1, 10**9), min_size=1), bytes_s=st.integers(1, 10**9), work_s=st.floats(0, 10))
def test_no_more_is_read_than_the_rate_allows(sizes: list[int], bytes_s: int, work_s: float) -> None:
    clock = Clock()
    rate = RateLimiter(bytes_s, clock=clock, sleep=clock.sleep)
    read_bytes = 0
    for size in sizes:
        rate.wait(size)
        assert read_bytes <= (clock.now_s - 100.0) * bytes_s * (1 + 1e-9) + 1, "before this one begins"
        read_bytes += size
        clock.now_s += work_s


def test_a_disk_that_is_slower_than_the_rate_is_not_waited_for() -> None:
    clock = Clock()
    rate = RateLimiter(1000, clock=clock, sleep=lambda _: pytest.fail("it slept"))
    for _ in range(5):
        rate.wait(1000)
        clock.now_s += 2


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_not_a_positive_number_is_refused(rate: float) -> None:
    with pytest.raises(BadInput, match="above 0"):
        RateLimiter(rate)


@pytest.mark.property
@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=50),
    speed=st.integers(1, 1000),
    budget_s=st.floats(0.01, 100),
)
def test_a_steady_disk_ends_in_time_but_for_the_first_blob(sizes: list[int], speed: int, budget_s: float) -> None:
    clock = Clock()
    budget = ReadBudget(budget_s, clock=clock)
    begun = []
    for size in sizes:
        if not budget.begin(size):
            break
        begun.append(size)
        clock.now_s += size / speed
        budget.done(size)

    took_s = clock.now_s - 100.0
    assert len(begun) >= 1
    assert took_s <= budget_s * (1 + 1e-9) or len(begun) == 1
    assert budget.ended == (len(begun) < len(sizes))
    if budget.ended:
        assert took_s + sizes[len(begun)] / speed >= budget_s * (1 - 1e-9), "it would have been too late"


def test_what_others_are_reading_counts() -> None:
    clock = Clock()
    budget = ReadBudget(10, clock=clock)
    assert budget.begin(100)
    clock.now_s += 1
    budget.done(100)
    assert budget.begin(800)
    assert not budget.begin(150), "800 take 8 s of the 9 that are left"


def test_without_a_budget_everything_is_read() -> None:
    budget = ReadBudget(None)

    assert all(budget.begin(10**12) for _ in range(3))
    assert not budget.ended


@pytest.mark.property
@given(works_s=st.lists(st.floats(0.011, 2), min_size=1), pauses_s=st.lists(st.floats(0, 30), min_size=1))
def test_what_repeats_takes_no_more_than_its_share(works_s: list[float], pauses_s: list[float]) -> None:
    clock = Clock()
    share = DutyCycle(1 / 10, free_s=0.01, clock=clock, used=clock)
    done_s = [0.0]
    for work_s, pause_s in zip(works_s, pauses_s, strict=False):

        def work(seconds: float = work_s) -> None:
            done_s[0] += seconds
            clock.sleep(seconds)

        before_s, begun_s = done_s[0], clock.now_s
        share.do(work)
        if done_s[0] > before_s:  # all before it has been paid for
            assert before_s <= (begun_s - 100.0) / 10 * (1 + 1e-6)
        clock.now_s += pause_s


def test_short_work_is_done_each_time_and_long_work_when_it_was_woken() -> None:
    clock = Clock()
    done_s: list[float] = []
    share = DutyCycle(1 / 10, free_s=0.01, clock=clock, used=clock)

    def work() -> None:
        done_s.append(0.005 if len(done_s) < 2 else 1.0)
        clock.sleep(done_s[-1])

    for _ in range(3):
        share.do(work)
    assert done_s == [0.005, 0.005, 1.0]

    share.do(lambda: pytest.fail("it has to rest"))
    clock.now_s += 9.9
    share.do(lambda: pytest.fail("it still has to rest"))
    share.wake()
    share.do(work)
    assert len(done_s) == 4


def test_what_wakes_it_while_it_is_done_is_not_forgotten() -> None:
    clock = Clock()
    share = DutyCycle(1 / 10, free_s=0.01, clock=clock, used=clock)

    def work(woken: bool) -> str:
        clock.sleep(1.0)
        if woken:
            share.wake()
        return "done"

    assert [share.do(partial(work, woken)) for woken in (True, True, False, False)] == [*3 * ["done"], None]


def test_a_first_time_that_would_take_long_rests_first() -> None:
    clock = Clock()
    share = DutyCycle(1 / 10, free_s=0.01, clock=clock, used=clock)

    assert share.do(lambda: "done", expected_s=1.0) is None
    clock.now_s += 9.0
    assert share.do(lambda: "done", expected_s=1.0) is None
    clock.now_s += 2.0
    assert share.do(lambda: "done", expected_s=1.0) == "done"


def test_a_first_time_that_takes_next_to_nothing_or_is_asked_for_does_not_rest() -> None:
    clock = Clock()
    woken = DutyCycle(1 / 10, free_s=0.01, clock=clock, used=clock)
    woken.wake()

    assert DutyCycle(1 / 10, free_s=0.01, clock=clock, used=clock).do(lambda: "done", expected_s=0.01) == "done"
    assert woken.do(lambda: "done", expected_s=1.0) == "done"
