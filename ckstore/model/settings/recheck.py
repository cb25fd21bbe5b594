"""Which blobs a save reads again of those that it relies on: a share, those that were read longest ago first.

A rule of values; what was read when comes from the catalog, which may have lost or forged it. That delays a reading
and does nothing else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_BYTES = 2**18
"""What every save reads however small the share is: small states are read whole."""
_RANDOM = random.SystemRandom()
"""Its own: a save takes no number of the generator that the training uses."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known about the last reading of a blob."""

    digest: str
    nbytes: int
    read_ns: int = 0  # when it was last read to its end, or written: nanoseconds since 1970; 0: not known
    read_to: int = 0  # bytes from its start that a reading under way, of several saves, has behind it
    whole: bool = False  # it is read whole or not at all: what is to be compared with is its digest, not bytes in hand


@dataclass(frozen=True, slots=True)
class DueBytes:
    """The bytes of a blob from `start` to `stop`, which are to be read."""

    digest: str
    start: int
    stop: int


def recheck_bytes(state_bytes: int, share: float) -> int:
    """Return how many bytes a save of that many reads again; 0 when the share is 0."""
    return max(LEAST_BYTES, math.ceil(share * state_bytes)) if share > 0 else 0


def due(readings: Iterable[Reading], budget_bytes: int, now_ns: int) -> list[DueBytes]:
    """Return what is to be read: of the blobs that were read longest ago, in all `budget_bytes` bytes."""
    # A blob whose reading is under way comes before others of its age. A blob that is read whole is not cut, so the sum
    # may be larger by most of one. Repeated with what it read taken note of, it comes round to every byte: of blobs of
    # n bytes together within n / `budget_bytes` + 2 times.
    # `readings`: blobs, each once. A time after `now_ns` is that of a wrong clock, or forged, and no time.
    # One under way first among its age: begun readings must end, or a frozen base would never be compared whole.
    # A draw between the others: where nothing can be remembered, each time others have their turn.
    ordered = sorted(readings, key=lambda of: (_age_key(of, now_ns), -_start(of), _RANDOM.random()))
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
    """Return what is known of a blob when a part of it was read as far as `stopped_at`, and was right."""
    done = stopped_at >= reading.nbytes
    return Reading(
        reading.digest,
        reading.nbytes,
        now_ns if done else reading.read_ns,
        0 if done else max(part.start, stopped_at),
        reading.whole,
    )


def _age_key(reading: Reading, now_ns: int) -> int:
    # A time in the future, of a wrong clock or a forged row, would keep a blob from ever being read again.
    return reading.read_ns if 0 < reading.read_ns <= now_ns else 0


def _start(reading: Reading) -> int:
    # Out of range it was forged or is of another blob: begin again.
    return 0 if reading.whole or not 0 <= reading.read_to < reading.nbytes else reading.read_to
