"""Words and numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.model import words


@pytest.mark.parametrize(
    "value,text",
    [
        (3, "3"),
        (2**70, str(2**70)),
        (2.103123, "2.1031"),
        (3e-5, "3e-05"),
        (123456.7, "123457"),
        (-2e7, "-20000000"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_a_metric_is_short(value: float, text: str) -> None:
    assert words.number_text(value) == text


@given(part=st.integers(0, 10**15), more=st.integers(0, 10**15))
def test_a_share_is_never_rounded_up_to_all(part: int, more: int) -> None:
    whole = part + more
    if whole == 0:
        return
    text = words.share_text(part, whole)

    assert (text == "100.0 %") == (part == whole)
    assert abs(float(text.split()[0]) - 100 * part / whole) <= 0.11


@given(text=st.text(st.characters(codec=None)), keep=st.booleans())
def test_what_is_shown_has_no_control_characters(text: str, keep: bool) -> None:
    shown = words.printable(text, keep_lines=keep)

    assert all(char.isprintable() or (keep and char in "\n\t") for char in shown)
    shown.encode()  # no lone surrogate
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    "new_bytes,text",
    [
        (0, "1.0 KiB, 0 B new (0.0 %)"),
        (1023, "1.0 KiB, 1023 B new (99.9 %)"),
        (1024, "1.0 KiB, all new"),
        (1088, "1.0 KiB, all new"),
    ],
)
def test_no_more_is_new_than_there_is(new_bytes: int, text: str) -> None:
    assert words.new_text(1024, new_bytes) == text


def test_nothing_has_no_share() -> None:
    assert words.new_text(0, 0) == "0 B, 0 B new"


def test_a_long_list_is_cut_short() -> None:
    lines = words.in_lines(range(410), ["410 in all"]).split("\n")

    assert lines[:2] == ["0", "1"]
    assert lines[-3:] == ["29", "and 380 more", "410 in all"]
