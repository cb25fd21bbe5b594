"""The threads of a load: each blob once, and after an error no more of them."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore.ops import read


@settings(deadline=None)
@given(bytes_of=st.dictionaries(st.integers(0, 50), st.integers(0, 100)), threads=st.integers(1, 4))
def test_each_is_done_once_and_the_largest_is_begun_first(bytes_of: dict[int, int], threads: int) -> None:
    done: list[int] = []

    read._for_each(done.append, bytes_of, threads=threads)

    assert sorted(done) == sorted(bytes_of)
    if threads == 1:
        sizes = [bytes_of[item] for item in done]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("error", [ValueError("broken"), IndexError("broken"), KeyboardInterrupt()])
def test_after_an_error_nothing_more_is_begun(threads: int, error: BaseException) -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise error
        time.sleep(0.02)

    with pytest.raises(type(error)) as raised:
        read._for_each(work, {item: 1000 - item for item in range(500)}, threads=threads)

    assert raised.value is error
    assert len(begun) < 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ckstore-load")]
