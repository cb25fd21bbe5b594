"""Where elements lie; no torch needed."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.tensors.memory_layout import keep_parts, may_overlap, part_at, row_major, span_elements

spans = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 80)).map(lambda drawn: (drawn[0], sum(drawn))), min_size=1, max_size=8
)
alignments = st.sampled_from([1, 2, 4, 8, 16])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def positions(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Return where each element lies, in elements."""
    indexes = itertools.product(*(range(n) for n in shape))
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in indexes]


@given(spans=spans, align_bytes=alignments)
def test_parts_keep_the_covered_bytes_and_no_others(spans: list[tuple[int, int]], align_bytes: int) -> None:
    covered = {byte for start, stop in spans for byte in range(start, stop)}

    parts, size = keep_parts(spans, align_bytes)

    kept = [byte for part in parts for byte in range(part.start, part.stop)]
    assert set(kept) == covered
    assert len(kept) == len(covered)
    assert size == parts[-1].place + parts[-1].stop - parts[-1].start


@given(spans=spans, align_bytes=alignments)
def test_parts_lie_one_after_another_and_stay_aligned(spans: list[tuple[int, int]], align_bytes: int) -> None:
    parts, _ = keep_parts(spans, align_bytes)

    end = 0
    for part in parts:
        assert end <= part.place < end + 64 + align_bytes
        assert part.place % align_bytes == part.start % align_bytes
        end = part.place + part.stop - part.start


@given(spans=spans, align_bytes=alignments)
def test_each_span_is_whole_in_one_part(spans: list[tuple[int, int]], align_bytes: int) -> None:
    parts, _ = keep_parts(spans, align_bytes)

    for start, stop in spans:
        part = part_at(parts, start)
        assert part.start <= start < stop <= part.stop


def test_a_lone_span_that_is_aligned_is_kept_without_a_byte_before_it() -> None:
    parts, size = keep_parts([(32, 48)], 4)

    assert (parts[0].place, size) == (0, 16)


@pytest.mark.parametrize("byte", [7, 16, 40])
def test_a_byte_outside_all_parts_is_found_nowhere(byte: int) -> None:
    parts, _ = keep_parts([(8, 16), (24, 32)], 8)

    with pytest.raises(ValueError, match=f"no part holds byte {byte}"):
        part_at(parts, byte)


@given(shape=shapes)
def test_row_major_elements_lie_in_order(shape: tuple[int, ...]) -> None:
    assert positions(shape, row_major(shape)) == list(range(math.prod(shape)))


@given(data=st.data(), shape=shapes)
def test_span_and_overlap_are_what_counting_says(data: st.DataObject, shape: tuple[int, ...]) -> None:
    strides = tuple(data.draw(st.integers(0, 6)) for _ in shape)
    places = positions(shape, strides)

    assert span_elements(shape, strides) == (max(places) + 1 if places else 0)
    if len(set(places)) < len(places):
        assert may_overlap(shape, strides)


@given(shape=shapes.filter(lambda shape: 0 not in shape), data=st.data())
def test_no_order_of_dimensions_overlaps(shape: tuple[int, ...], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    strides, step = [1] * len(shape), 1
    for dimension in order:
        strides[dimension] = step
        step *= shape[dimension] + data.draw(st.integers(0, 2))

    assert not may_overlap(shape, strides)
