"""Memory that direct reads and writes can go to and come from."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress

GRAIN_BYTES = 4096
"""Offsets, lengths and memory of direct reads and writes are multiples of it: no disk in use has larger blocks."""
_HUGE_BYTES = 2 * 2**20
_SHARED_FROM_BYTES = 2**18
_GAP_BYTES = 2 * mmap.PAGESIZE
_MADV_COLLAPSE = 25  # linux/mman.h


def aligned_buffer(nbytes: int) -> memoryview:
    """Return private memory of `nbytes` bytes, a multiple of `GRAIN_BYTES`; in huge pages where it is large.

    The kernel fills fresh memory with zeros page by page, which takes longer than what is done with it later; of huge
    pages it needs a five-hundredth. Children that are forked do not get it: a disk that fills the pages of a read would
    fill those of the child on kernels that copy them on the next write.
    """
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTFORK)
    if nbytes >= _HUGE_BYTES:
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def prefer_huge_pages(memories: Iterable[memoryview]) -> None:
    """Ask the kernel for huge pages below fresh, writable memories; those that lie side by side share them.

    The allocator has written its notes into the first page of each, and where one small page is, no huge one comes by
    itself: these the kernel is told to replace (Linux 6.1). A kernel that does not know a request refuses it, and
    nothing else is different then.
    """
    import ctypes

    advise = ctypes.CDLL(None).madvise
    spans = sorted(_pages_of(memory) for memory in memories if memory.nbytes >= _SHARED_FROM_BYTES)
    ranges: list[list[int]] = []
    for start, stop in spans:
        if ranges and start <= ranges[-1][1] + _GAP_BYTES:
            ranges[-1][1] = stop
        else:
            ranges.append([start, stop])
    for start, stop in ranges:
        advise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_HUGEPAGE)
        noted = {at // _HUGE_BYTES * _HUGE_BYTES for at, _ in spans if start <= at < stop}
        for block in sorted(noted):
            if start <= block and block + _HUGE_BYTES <= stop:
                advise(ctypes.c_void_p(block), ctypes.c_size_t(_HUGE_BYTES), _MADV_COLLAPSE)


def _pages_of(memory: memoryview) -> tuple[int, int]:
    """Return the addresses from the beginning of the first page to the end of the last."""
    import ctypes

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return address // mmap.PAGESIZE * mmap.PAGESIZE, -(-(address + memory.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE


def is_aligned(data: memoryview) -> bool:
    """Whether `data` is the beginning of an `aligned_buffer`; a slice from further inside passes, too."""
    return isinstance(data.obj, mmap.mmap)
