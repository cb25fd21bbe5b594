"""The order of commits: which sequence numbers count. Source: docs/format/v1.md, "Order of commits".

A number far beyond its neighbours is damage, or was made up: if it counted, the checkpoint would be the newest for
ever, and the numbers after it would soon be used up.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_SEQUENCE = 2**53 - 1
"""The greatest sequence number that a manifest may have."""

# No store makes that many saves in its life: a number beyond it is a flipped bit, or made up.
WIDEST_GAP = 2**32
"""How far beyond the next smaller number of the store, or beyond 0, one may be and still count."""


def greatest_in_order(sequences: Iterable[int]) -> int:
    """Return the greatest sequence number that counts, 0 if there is none: those beyond it do not."""
    last = 0
    for sequence in sorted(sequences):
        # Sorted, so one forged number does not carry others with it.
        if sequence - last > WIDEST_GAP:
            break
        last = sequence
    return last


def out_of_order(name: str, sequence: int, limit: int) -> str:
    """Return what to say of a checkpoint whose sequence number does not count."""
    return (
        f"the sequence number of {name}, {sequence}, is more than 2^32 beyond the greatest that counts, {limit}: "
        "it does not count, so the checkpoint is listed before all others; it can be loaded by its step"
    )
