from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore_cli._progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_the_line_says_how_far_and_how_long_and_goes_away(terminal: Terminal) -> None:
    clock = Clock()
    with Progress("verifying", 4 * 2**30, stream=terminal, clock=clock) as progress:
        clock.now_s = 10.0
        progress.advance(2**30)

    assert terminal.getvalue() == ("\r\x1b[Kverifying  25 %  1.0 GiB of 4.0 GiB  0:30 left\r\x1b[K")


def test_it_is_drawn_at_most_ten_times_a_second(terminal: Terminal) -> None:
    clock = Clock()
    with Progress("copying", stream=terminal, clock=clock) as progress:
        for _ in range(1000):
            progress.advance(1)
            clock.now_s += 0.001

    assert 10 <= terminal.getvalue().count("copying") <= 11
    assert progress.done_bytes == 1000


def test_a_work_of_unknown_size_shows_what_is_done(terminal: Terminal) -> None:
    with Progress("reading", stream=terminal, clock=Clock()) as progress:
        progress.advance(3 * 2**20)

    assert "reading  3.0 MiB\r" in terminal.getvalue()


def test_it_is_cut_to_the_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    with Progress("a long word for the work", 100, stream=terminal, clock=Clock()) as progress:
        progress.advance(1)

    assert terminal.getvalue().split("\x1b[K")[1].rstrip("\r") == "a long word for th…"


@pytest.mark.parametrize("why", ["pipe", "dumb", "quiet"])
def test_nothing_is_drawn_where_it_would_disturb(why: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO() if why == "pipe" else terminal
    monkeypatch.setenv("TERM", "dumb" if why == "dumb" else "xterm")
    with Progress("verifying", 100, quiet=why == "quiet", stream=stream, clock=Clock()) as progress:
        progress.advance(50)

    assert stream.getvalue() == ""


@given(total=st.integers(1, 2**60), done=st.integers(0, 2**61), spent_s=st.floats(0, 1e7))
def test_no_amount_breaks_the_line(total: int, done: int, spent_s: float) -> None:
    clock = Clock()
    progress = Progress("x", total, clock=clock)
    progress.done_bytes = done
    shown = progress.text(spent_s)

    percent = int(shown.split("  ")[1].split()[0])
    assert 0 <= percent <= 100
    assert (percent == 100) <= (done >= total * 0.99)
