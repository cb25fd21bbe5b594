from __future__ import annotations

import os
import signal
import threading

import pytest

from ckstore import BadInput, training


def test_a_signal_sets_a_flag_if_that_is_asked_for() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        training.stop_on_signals(signal.SIGUSR1)
        assert not training.should_stop()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert training.should_stop()
        training.stop_on_signals(signal.SIGUSR1)
        assert not training.should_stop()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_only_the_main_thread_can_ask_for_it() -> None:
    raised: list[BadInput] = []

    def ask() -> None:
        with pytest.raises(BadInput, match="cannot be handled") as excinfo:
            training.stop_on_signals(signal.SIGUSR1)
        raised.append(excinfo.value)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()

    assert "main thread" in raised[0].hint
