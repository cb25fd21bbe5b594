"""The share of the blobs that a save reads again comes round to every byte, whatever the catalog says."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ckstore.model.settings.recheck import LEAST_BYTES, DueBytes, Reading, after, due, recheck_bytes

NOW = 1_000_000
_anything = st.integers(-(2**63), 2**63)
_sizes = st.integers(1, 40)


@st.composite
def readings(draw: st.DrawFn) -> list[Reading]:
    """Blobs with readings of any time and place, as a catalog that is right, lost or forged gives them."""
    return [
        Reading(
            str(number),
            draw(_sizes),
            draw(st.integers(0, NOW) | _anything),
            draw(st.integers(0, 40) | _anything),
            draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 8)))
    ]


def nbytes(parts: list[DueBytes]) -> int:
    return sum(part.stop - part.start for part in parts)


@given(blobs=readings(), budget_bytes=st.integers(0, 100))
def test_what_is_due_fills_the_budget_and_exceeds_it_by_less_than_one_blob_that_is_not_cut(
    blobs: list[Reading], budget_bytes: int
) -> None:
    parts = due(blobs, budget_bytes, NOW)

    sizes = {blob.digest: blob for blob in blobs}
    assert len({part.digest for part in parts}) == len(parts)
    assert all(0 <= part.start < part.stop <= sizes[part.digest].nbytes for part in parts)
    assert all(part.stop - part.start == sizes[part.digest].nbytes for part in parts if sizes[part.digest].whole)
    largest = max((blob.nbytes for blob in blobs if blob.whole), default=1)
    assert nbytes(parts) < budget_bytes + largest
    behind = sum(blob.read_to for blob in blobs if not blob.whole and 0 <= blob.read_to < blob.nbytes)
    unread = sum(blob.nbytes for blob in blobs) - behind
    assert nbytes(parts) >= min(budget_bytes, unread)


@given(blobs=readings(), budget_bytes=st.integers(1, 60), change=st.integers(0, 8))
def test_every_byte_that_all_saves_rely_on_is_read_within_a_number_of_saves_that_is_stated(
    blobs: list[Reading], budget_bytes: int, change: int
) -> None:
    bound = math.ceil(sum(blob.nbytes for blob in blobs) / budget_bytes) + 2
    known = {blob.digest: blob for blob in blobs}
    read: list[dict[str, set[int]]] = []
    for save in range(3 * bound):
        now = NOW + 1 + save
        # What the save before wrote was read when it was written, and this save does not rely on it.
        fresh = [Reading(f"fresh {n}", 7, now - 1) for n in range(change if save else 0)]
        parts = due([*known.values(), *fresh], budget_bytes, now)
        read.append({part.digest: set(range(part.start, part.stop)) for part in parts})
        known.update((p.digest, after(known[p.digest], p, p.stop, now)) for p in parts if p.digest in known)

    # A reading that was under way at the start has a part behind it that no reading vouches for: it counts from the
    # next.
    for start in range(bound, 2 * bound):
        window = read[start : start + bound]
        for blob in blobs:
            seen = set[int]().union(*(save.get(blob.digest, set()) for save in window))
            assert seen == set(range(blob.nbytes)), (blob, start)


@given(blobs=readings(), budget_bytes=st.integers(1, 60))
def test_no_blob_is_read_before_one_that_was_read_longer_ago(blobs: list[Reading], budget_bytes: int) -> None:
    chosen = {part.digest for part in due(blobs, budget_bytes, NOW)}

    def age(blob: Reading) -> int:
        return NOW - blob.read_ns if 0 < blob.read_ns <= NOW else NOW

    left = [age(blob) for blob in blobs if blob.digest not in chosen]
    assert all(age(blob) >= max(left, default=0) for blob in blobs if blob.digest in chosen)


def test_a_time_in_the_future_is_no_time() -> None:
    blobs = [Reading("old", 10, NOW - 9), Reading("forged", 10, NOW + 1), Reading("new", 10, NOW - 1)]

    assert [part.digest for part in due(blobs, 11, NOW)] == ["forged", "old"]


def test_a_reading_that_was_cut_goes_on_where_it_stopped() -> None:
    blob = Reading("big", 100, 5, 40)
    (part,) = due([blob, Reading("same age", 100, 5)], 30, NOW)

    assert part == DueBytes("big", 40, 70)
    assert after(blob, part, 70, NOW) == replace(blob, read_to=70)
    assert after(blob, part, 100, NOW) == replace(blob, read_ns=NOW, read_to=0)


def test_a_small_state_is_read_whole_and_of_a_large_one_its_share() -> None:
    assert recheck_bytes(10, 0.01) == LEAST_BYTES
    assert recheck_bytes(2**40, 0.01) == math.ceil(2**40 / 100)
    assert recheck_bytes(2**40, 0.0) == 0
