"""Choose the bytes of reused blobs that a save rereads, beginning with the blobs that were read longest ago.

This module does no I/O. The times of the last readings are from the catalog. If the catalog has lost times or contains
forged times, this only delays readings.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_BYTES = 2**18
"""The minimum number of bytes that a save rereads, so that small states are read completely."""
_RANDOM = random.SystemRandom()
"""A separate generator, so that a save does not change the random numbers of the training."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The last known reading of a blob."""

    digest: str
    nbytes: int
    read_ns: int = 0  # when it was last read completely or written, in nanoseconds since 1970; 0 if unknown
    read_to: int = 0  # number of bytes at its start that were already read, if several saves read it part by part
    whole: bool = False  # whether it must be read completely at once, because it is compared with its digest


@dataclass(frozen=True, slots=True)
class DueBytes:
    """The bytes of a blob to read, from `start` to `stop`."""

    digest: str
    start: int
    stop: int


def recheck_bytes(state_bytes: int, share: float) -> int:
    """Return how many bytes a save of `state_bytes` bytes rereads, or 0 if the share is 0."""
    return max(LEAST_BYTES, math.ceil(share * state_bytes)) if share > 0 else 0


def due(readings: Iterable[Reading], budget_bytes: int, now_ns: int) -> list[DueBytes]:
    """Return the bytes to read, in total `budget_bytes` bytes of the blobs that were read longest ago.

    Among blobs that were last read at the same time, partly reread blobs are first. Otherwise, large blobs that never
    change might never be reread completely. A blob with `whole` is not cut, so the sum may exceed the budget by nearly
    the size of one blob. If each call records its readings, blobs with n bytes in total are reread completely within
    n / `budget_bytes` + 2 calls.

    Args:
        readings: The last reading of each blob.
        budget_bytes: The number of bytes to read.
        now_ns: The current time. A later time of a reading is from a wrong clock or forged, and is ignored.
    """
    # The order of blobs that were read at the same time is random, so that each call chooses different blobs if no
    # reading can be recorded. A time in the future would prevent the blob from being reread, so it counts as unknown.
    ordered = sorted(
        readings,
        key=lambda of: (of.read_ns if 0 < of.read_ns <= now_ns else 0, -_start(of), _RANDOM.random()),
    )
    parts: list[DueBytes] = []
    left_bytes = budget_bytes
    for reading in ordered:
        if left_bytes <= 0:
            break
        start = _start(reading)
        stop = reading.nbytes if reading.whole else min(reading.nbytes, start + left_bytes)
        if stop > start:
            parts.append(DueBytes(reading.digest, start, stop))
            left_bytes -= stop - start
    return parts


def after(reading: Reading, part: DueBytes, stopped_at: int, now_ns: int) -> Reading:
    """Return the reading of a blob after a part of it was read up to `stopped_at` without a difference."""
    done = stopped_at >= reading.nbytes
    return Reading(
        reading.digest,
        reading.nbytes,
        now_ns if done else reading.read_ns,
        0 if done else max(part.start, stopped_at),
        reading.whole,
    )


def _start(reading: Reading) -> int:
    # A `read_to` outside the blob is forged or belongs to another blob, so start again.
    return 0 if reading.whole or not 0 <= reading.read_to < reading.nbytes else reading.read_to
