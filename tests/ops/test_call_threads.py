"""A few threads for the time of one call: what they began has ended before the call goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from ckstore.ops.call_threads import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(4)
    yield made
    made.stop()


def test_results_come_in_the_order_of_the_items(workers: Workers) -> None:
    def late(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item

    assert list(workers.map(late, range(20))) == [*range(20)]


def test_an_error_is_raised_when_nothing_runs_any_more(workers: Workers) -> None:
    """Else a thread may go on in a directory whose lock was released, and open something that stays open."""
    running: set[int] = set()
    failed = threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        running.add(item)
        if item == 0:
            failed.set()
            running.discard(item)
            raise OSError(24, "Too many open files")
        failed.wait(10)
        time.sleep(0.02)
        running.discard(item)
        done.append(item)

    with pytest.raises(OSError, match="Too many open files"):
        list(workers.map(work, range(100)))

    assert not running
    assert len(done) < 99  # what was not begun is dropped
    assert list(workers.map(abs, [-1, 2])) == [1, 2]


def test_who_leaves_early_closes_it_and_nothing_runs_any_more(workers: Workers) -> None:
    running: set[int] = set()

    def work(item: int) -> int:
        running.add(item)
        time.sleep(0.01)
        running.discard(item)
        return item

    with closing(workers.map(work, range(100))) as results:
        assert next(results) == 0

    assert not running


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", none)
    workers = Workers(2)

    assert list(workers.map(abs, [-1, 2])) == [1, 2]
    with pytest.raises(ValueError, match="invalid literal"):
        list(workers.map(int, ["x"]))
    workers.stop()
