"""The garbage collector is paused while a caller asks for it, and runs afterwards: with threads, errors and forks."""

import gc
import math
import os
import threading
from collections.abc import Iterator

import pytest

from ckstore.interpreter import end_overdue_pauses, python_gc_paused


@pytest.fixture(autouse=True)
def _collector_runs_afterwards() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_rests_until_the_last_stretch_has_ended() -> None:
    with python_gc_paused():
        with python_gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(KeyError), python_gc_paused():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_its_owner_stopped_stays_stopped() -> None:
    gc.disable()
    with python_gc_paused():
        pass
    assert not gc.isenabled()


def test_stretches_of_threads_that_overlap_leave_it_running() -> None:
    began, over = threading.Barrier(4), threading.Barrier(4)

    def stretch() -> None:
        for _ in range(50):
            with python_gc_paused():
                began.wait(10)
            over.wait(10)

    threads = [threading.Thread(target=stretch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert gc.isenabled()


def test_it_runs_in_a_child_that_was_forked_meanwhile() -> None:
    with python_gc_paused():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert gc.isenabled()
                with python_gc_paused():
                    assert not gc.isenabled()
                assert gc.isenabled()
                status = 0
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(ended) == 0


def test_an_overdue_pause_ends_before_its_block() -> None:
    with python_gc_paused(most_s=0.0):
        assert not gc.isenabled()
        with python_gc_paused():
            end_overdue_pauses()
            assert not gc.isenabled()
        assert gc.isenabled()
        with python_gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled()
    assert gc.isenabled()


def test_a_pause_that_is_not_overdue_continues() -> None:
    with python_gc_paused(most_s=3600.0):
        end_overdue_pauses()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_pause_ends_before_a_wait_in_which_it_would_become_overdue() -> None:
    with python_gc_paused(most_s=60.0):
        end_overdue_pauses(within_s=30.0)
        assert not gc.isenabled()
        end_overdue_pauses(within_s=90.0)
        assert gc.isenabled()
    with python_gc_paused():
        end_overdue_pauses(within_s=math.inf)
        assert not gc.isenabled()
