"""The layout of elements in memory: spans, strides, and the kept parts of shared memory.

This module uses neither torch nor NumPy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# This is the size of a cache line, and a multiple of the item size of every dtype, so that a mapped tensor is aligned.
PLACE_BYTES = 64
"""The alignment of parts in a storage and of pieces in a pack, in bytes. See `keep_parts` for the place of a part."""


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """A range of bytes in live memory that is kept in a storage."""

    # `start` and `stop` are offsets in the live memory, in bytes.
    start: int
    stop: int
    place: int  # offset in the storage that keeps the range, in bytes


@dataclass(frozen=True, slots=True)
class Region:
    """Contiguous memory with exactly the elements of one tensor or array."""

    address: int  # address of its first byte
    nbytes: int  # its size
    memory: Any  # its writable bytes, or a `DeviceMemory` if it is on a device
    owner: object  # keeps the memory alive


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, that torch gives a contiguous row-major tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        # Like torch, count a size of 0 as 1. Otherwise, the strides of all dimensions before it would be 0.
        step *= size or 1
    return tuple(strides[::-1])


def span_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the size in elements of the memory from the first to the last element, or 0 if there are no elements.

    `strides` are also in elements, and must not be negative.
    """
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def keep_parts(spans: Iterable[tuple[int, int]], align_bytes: int) -> tuple[list[KeptSpan], int]:
    """Merge spans that overlap or touch into parts, and place the parts in a storage one after another.

    Views that share live memory therefore share the storage, and memory that no view covers is not stored.

    Args:
        spans: Start and stop of each view, in bytes of the live memory. No span is empty.
        align_bytes: A power of two, at most `PLACE_BYTES`. A part that starts at `start` in live memory is placed at a
            multiple of `PLACE_BYTES` plus `start % align_bytes`, so that each element stays aligned to its own size.

    Returns:
        The parts, in ascending order of their start, and the size of the storage in bytes.
    """
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
    """Whether two elements may share a place in memory, as after `expand` or `unfold`.

    The result False is always correct. The result True can be wrong for layouts that interleave dimensions, but such
    layouts do not occur in practice.
    """
    reach = 0
    for stride, size in sorted((t, n) for n, t in zip(shape, strides, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@dataclass(slots=True)
class StorageMemory:
    """The bytes of one storage, which must be filled before leaves are made from them."""

    owner: object  # a flat uint8 tensor or array, or a buffer for bytes and str; leaves keep it alive
    view: memoryview  # all of its bytes, writable
