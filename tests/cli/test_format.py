from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.model.sizes import size_text
from ckstore_cli import _format

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


@given(nbytes=st.integers(0, 2**63))
def test_a_size_is_short_and_within_its_rounding(nbytes: int) -> None:
    text = size_text(nbytes)
    number, unit = text.split()
    factor = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)

    assert len(text) <= len("1023.9 KiB")
    assert abs(float(number) * factor - nbytes) <= 0.05 * factor * 1.001
    assert float(number) < 1024


@pytest.mark.parametrize(
    "nbytes,text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (32 * 2**20, "32.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
    ],
)
def test_sizes_are_written_with_one_decimal(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


@pytest.mark.parametrize(
    "seconds,text",
    [
        (-3600, "in the future"),
        (-5, "0 s ago"),
        (0.2, "0 s ago"),
        (42.9, "42 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (47 * 3600 + 3599, "47 h ago"),
        (48 * 3600, "2 days ago"),
        (59 * 86400, "59 days ago"),
        (60 * 86400, "2026-09-22"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, text: str) -> None:
    created = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    assert _format.age_text(created, NOW) == text


CELLS = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=6)


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1), last=st.sampled_from("<>"))
def test_columns_start_and_end_at_the_same_places(rows: list[tuple[str, str, str]], last: str) -> None:
    lines = _format.columns(rows, f"<>{last}")

    first = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    for row, line in zip(rows, lines, strict=True):
        assert line[:first].rstrip() == row[0]
        assert line[first + 2 : first + 2 + second].lstrip() == row[1]
        assert line[first + second + 4 :].strip() == row[2]
    if last == "<":
        assert all(line.endswith(row[2]) for row, line in zip(rows, lines, strict=True))


WORDS = st.lists(st.text("abc", min_size=1, max_size=12), min_size=1)


@given(words=WORDS, width=st.integers(1, 30))
def test_wrapped_lines_are_the_words_in_order_and_as_wide_as_allowed(words: list[str], width: int) -> None:
    lines = _format.wrap(words, width)

    assert " ".join(lines) == " ".join(words)
    assert all(len(line) <= width or " " not in line for line in lines)


@given(text=st.text("abcdef"), width=st.none() | st.integers(1, 10))
def test_a_cut_text_says_that_it_was_cut(text: str, width: int | None) -> None:
    shown = _format.cut(text, width)

    assert shown == text or (shown[:-1] == text[: len(shown) - 1] and shown[-1] == "…")
    assert width is None or len(shown) <= width
    assert (shown == text) == (width is None or len(text) <= width)


@given(text=st.text("abcdef"), width=st.integers(1, 10))
def test_a_text_that_is_cut_in_its_middle_keeps_both_ends(text: str, width: int) -> None:
    shown = _format.cut_in_middle(text, width)

    begin, found, end = shown.partition("…")
    assert len(shown) == min(width, len(text))
    assert (shown == text) == (len(text) <= width)
    assert text.startswith(begin)
    assert text.endswith(end)
    assert not found or 0 <= len(end) - len(begin) <= 1


@given(names=st.lists(st.text("abcdef.", min_size=1), min_size=1, max_size=4), width=st.none() | st.integers(16, 40))
def test_a_table_of_names_keeps_the_ends_of_those_that_are_too_long(names: list[str], width: int | None) -> None:
    rows = [("SIZE", "NAME"), *(("1.5 GiB", name) for name in names)]

    _, *lines = _format.columns_with_names(rows, "><", width)

    assert all(width is None or len(line) <= width for line in lines)
    assert all(
        line.startswith("1.5 GiB  ") and line.endswith(name[-3:]) for line, name in zip(lines, names, strict=True)
    )
    assert [line[9:] == name for line, name in zip(lines, names, strict=True)] == [
        width is None or len(name) + 9 <= width for name in names
    ]
