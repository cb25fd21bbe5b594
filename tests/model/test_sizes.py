from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.model.sizes import exact_size, needed_and_free, parse_size, sizes_apart


@given(count=st.integers(0, 10**6), unit=st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_a_size_with_a_unit_is_read(count: int, unit: str) -> None:
    factor = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]

    for written in (unit, unit.lower(), unit[0], f" {unit}"):
        assert parse_size(f"{count}{written}") == count * factor
    assert parse_size(f"{count}.5{unit}") == count * factor + factor // 2


def test_a_size_without_a_unit_is_bytes_and_decimal_units_are_decimal() -> None:
    assert parse_size("33554432") == 33554432
    assert parse_size("12B") == 12
    assert parse_size("32MB") == 32_000_000


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1MiB", "1 XiB", "1e6", "0x10", "1.5B", "1 MiB x", "9" * 5000, f"0.{'1' * 5000}"]
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=re.escape(repr(text))):
        parse_size(text)


@given(
    nbytes=st.integers(0, 2**60) | st.builds(int.__mul__, st.integers(0, 9999), st.sampled_from([10**8, 2**40, 1024]))
)
def test_an_exact_size_is_read_back_as_the_same_number(nbytes: int) -> None:
    assert parse_size(exact_size(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["0B", "512B", "1KB", "1KiB", "1.5GiB", "1.8TB", "2TiB", "500GB", "1000001B"])
def test_an_exact_size_is_short(text: str) -> None:
    assert exact_size(parse_size(text)) == text


@given(first=st.integers(0, 2**62), second=st.integers(0, 2**62) | st.none())
def test_two_different_sizes_are_never_shown_as_the_same(first: int, second: int | None) -> None:
    other = first + 1 if second is None else second

    shown = sizes_apart(first, other)

    assert (shown[0] == shown[1]) == (first == other)


def test_sizes_in_messages_have_units() -> None:
    assert needed_and_free(4_022_784, 344_064) == "3.8 MiB, 336.0 KiB are free"
    assert needed_and_free(4_022_784, 4_022_783) == "4022784 B, 4022783 B are free"
