"""Gather the elements of a strided tensor in row-major order, one block at a time, without torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ckstore.errors import MissingExtra

_WHOLE = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


@dataclass(frozen=True, slots=True)
class ElementBox:
    """A box of elements of a tensor."""

    starts: tuple[int, ...]  # the first index in each dimension
    stops: tuple[int, ...]  # the index after the last one in each dimension
    # The elements of the box are in the bytes from `low` to `high` of the storage.
    low: int
    high: int
    first: int  # offset of the first element in the storage, in bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements in each dimension."""
        return tuple(stop - start for start, stop in zip(self.starts, self.stops, strict=True))


def blocks(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, item_bytes: int, most_bytes: int
) -> Iterator[ElementBox]:
    """Cut a tensor into boxes of at most `most_bytes`.

    The limit applies both to the bytes that a box spans in the storage and to the bytes of its elements. A box has at
    least one element, whatever the limit is. The boxes are in ascending order of `low`, unless elements of one box are
    between elements of another box.
    """
    todo = [((0,) * len(shape), shape)]
    while todo:
        starts, stops = todo.pop()
        sizes = [stop - start for start, stop in zip(starts, stops, strict=True)]
        reaches = [(size - 1) * abs(stride) for size, stride in zip(sizes, strides, strict=True)]
        span_bytes = item_bytes * (1 + sum(reaches))
        if span_bytes > most_bytes and any(reaches):
            at = max((i for i, reach in enumerate(reaches) if reach), key=lambda i: abs(strides[i]))
            room = most_bytes - (span_bytes - item_bytes * reaches[at])
            step = 1 + max(0, room) // (item_bytes * abs(strides[at]))
        elif item_bytes * math.prod(sizes) > most_bytes and max(sizes, default=1) > 1:
            at = next(i for i, size in enumerate(sizes) if size > 1)
            step = max(1, most_bytes // (item_bytes * math.prod(sizes[at + 1 :])))
        else:
            yield _block(starts, stops, strides, offset, item_bytes)
            continue
        cuts = range(starts[at], stops[at], min(step, sizes[at] - 1))
        for cut in reversed(cuts) if strides[at] >= 0 else cuts:  # the last item of `todo` is cut first
            until = min(cut + cuts.step, stops[at])
            todo.append(((*starts[:at], cut, *starts[at + 1 :]), (*stops[:at], until, *stops[at + 1 :])))


def _block(
    starts: tuple[int, ...], stops: tuple[int, ...], strides: tuple[int, ...], offset: int, item_bytes: int
) -> ElementBox:
    first = offset + item_bytes * sum(start * stride for start, stride in zip(starts, strides, strict=True))
    ends = [(stop - start - 1) * stride for start, stop, stride in zip(starts, stops, strides, strict=True)]
    low = first + item_bytes * sum(end for end in ends if end < 0)
    high = first + item_bytes * (1 + sum(end for end in ends if end > 0))
    return ElementBox(starts, stops, low, high, first)


def gather(block: ElementBox, strides: tuple[int, ...], item_bytes: int, data: memoryview) -> memoryview:
    """Return the elements of a block in row-major order. `data` has the bytes `low` to `high` of the storage."""
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra.of(error, "gathering a tensor that is not contiguous needs", "numpy", "torch") from error
    steps = tuple(item_bytes * stride for stride in strides)
    dtype = np.dtype(_WHOLE.get(item_bytes, f"V{item_bytes}"))
    spread = np.ndarray(block.shape, dtype, data, block.first - block.low, steps)
    flat: Any = np.ascontiguousarray(spread).reshape(-1).view(np.uint8)
    return memoryview(flat)


@dataclass(frozen=True, slots=True)
class Runs:
    """The places of the elements of a block in the row-major tensor, as contiguous runs of bytes.

    Iterating yields the offset of each run in the tensor, in bytes.
    """

    starts: tuple[range, ...]  # one range for each dimension; an offset is the sum of one item of each range
    nbytes: int  # length of each run

    def __iter__(self) -> Iterator[int]:
        return map(sum, itertools.product(*self.starts))


def runs_of(block: ElementBox, shape: tuple[int, ...], item_bytes: int) -> Runs:
    """Return the places of the elements of a block in a tensor of this shape."""
    run_bytes = item_bytes
    at = len(shape)
    while at and (block.starts[at - 1], block.stops[at - 1]) == (0, shape[at - 1]):
        at -= 1
        run_bytes *= shape[at]
    inner = run_bytes
    if at:
        run_bytes *= block.stops[at - 1] - block.starts[at - 1]
    ranges = []
    for i in reversed(range(at)):
        start, stop = block.starts[i] * inner, block.stops[i] * inner
        ranges.append(range(start, start + 1) if i == at - 1 else range(start, stop, inner))
        inner *= shape[i]
    return Runs(tuple(reversed(ranges)), run_bytes)
