"""The one loop of several threads: who is told, an end that comes, how many threads. More: `read/test_read.py`."""

from __future__ import annotations

import threading
import time

import pytest

from ckstore.ops.call_threads import default_threads, for_each


@pytest.mark.parametrize("threads", [1, 3])
def test_what_the_caller_is_told_comes_in_its_own_thread(threads: int) -> None:
    told: list[int] = []

    for_each(lambda _: time.sleep(0.01), range(5), threads=threads, say=lambda: told.append(threading.get_ident()))

    assert set(told) == {threading.get_ident()}


def test_what_the_caller_raises_ends_the_work() -> None:
    ended: list[int] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    def work(item: int) -> None:
        time.sleep(0.2)
        ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        for_each(work, range(100), threads=2, say=interrupt)

    after = len(ended)
    time.sleep(0.3)
    assert len(ended) == after <= 4


def test_the_number_of_threads_grows_with_the_cores_and_has_an_end() -> None:
    assert [default_threads(cores) for cores in (1, 2, 8, 10, 24, 96, 256)] == [4, 4, 4, 5, 12, 16, 16]
