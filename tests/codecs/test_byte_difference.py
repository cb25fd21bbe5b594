"""A difference turns the old bytes into the new ones, and contains only the bytes that differ."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckstore.codecs.byte_difference import changed_bytes


@given(
    old=st.binary(max_size=100),
    changes=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), max_size=30),
    start=st.integers(0, 8),
)
def test_law_the_bytes_that_differ_are_found_in_order(old: bytes, changes: list[tuple[int, int]], start: int) -> None:
    """At any alignment and length."""
    changed = bytearray(old)
    for at, value in changes:
        if at < len(old):
            changed[at] = value
    before, after = (np.frombuffer(memoryview(one)[min(start, len(one)) :], np.uint8) for one in (old, changed))

    found, values = changed_bytes(before, after)

    assert found.tolist() == [i for i in range(len(after)) if before[i] != after[i]]
    assert values.tolist() == [int(after[i]) for i in found]
