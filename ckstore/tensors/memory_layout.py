"""The layout of elements in memory: spans, strides, and the kept parts of shared memory. No torch, no NumPy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# A cache line, and a multiple of every dtype's size: a mapped tensor is aligned.
PLACE_BYTES = 64  # parts of a storage begin at multiples of this, like pieces in a pack


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """A range of bytes of live memory that is kept."""

    # `start` and `stop`: Bytes from the start of the live memory.
    start: int
    stop: int
    place: int  # bytes from the start of the storage that keeps it


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of the process that the elements of one tensor or array fill, without a gap."""

    address: int  # of its first byte
    nbytes: int  # its size
    memory: Any  # its bytes, writable; `DeviceMemory` where it lies on a device


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous row-major tensor, as torch gives them."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        # As torch does for sizes of 0; a zero would make all strides before it 0.
        step *= size or 1
    return tuple(strides[::-1])


def span_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last one, both included; 0 without elements."""
    # `strides` are in elements and not negative.
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def keep_parts(spans: Iterable[tuple[int, int]], align_bytes: int) -> tuple[list[KeptSpan], int]:
    """Merge spans that overlap or touch, and place the results one after another."""
    # So views that share memory keep sharing it, and the memory that no view covers is not stored. `spans`: (start,
    # stop) of each view, in bytes of the live memory; none is empty. `align_bytes`: A power of two, at most
    # `PLACE_BYTES`; each part keeps its position modulo this, so that every element stays aligned to its own size.
    # Returns: the parts, by rising start, and the size in bytes of the storage that holds them.
    parts: list[KeptSpan] = []
    size = 0
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    for start, stop in merged:
        place = -(-size // PLACE_BYTES) * PLACE_BYTES + start % align_bytes
        parts.append(KeptSpan(start, stop, place))
        size = place + stop - start
    return parts, size


def part_at(parts: Sequence[KeptSpan], start: int) -> KeptSpan:
    """Return the part that contains the byte `start` of the live memory."""
    at = bisect_right(parts, start, key=lambda part: part.start) - 1
    if at < 0 or parts[at].stop <= start:
        raise ValueError(f"no part holds byte {start}")
    return parts[at]


def may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may share a place in memory (`expand`, `unfold`)."""
    # False is certain. True is not for layouts that interleave dimensions, which no program makes.
    reach = 0
    for stride, size in sorted((t, n) for n, t in zip(shape, strides, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@dataclass(slots=True)
class StorageMemory:
    """The bytes of one storage, to be filled before leaves are made of it."""

    owner: object  # A flat uint8 tensor or array, or, for bytes and str, a buffer. Leaves keep it alive.
    view: memoryview  # all of its bytes, writable
