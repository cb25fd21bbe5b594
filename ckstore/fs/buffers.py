"""Memory for direct reads and writes."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

GRAIN_BYTES = 4096
"""Offsets, lengths and memory addresses of direct reads and writes are multiples of it. No disk in use has larger
blocks."""
# A smaller buffer holds no whole huge page of 2 MiB, so asking for one would be a wasted system call.
_HUGE_FROM_BYTES = 2 * 2**20
_WIPE_ON_FORK = 18
"""MADV_WIPEONFORK of Linux 4.14, for which Python has no name."""


def aligned_buffer(nbytes: int) -> memoryview:
    """Return private memory of `nbytes` bytes, a multiple of `GRAIN_BYTES`. Large memory uses huge pages."""
    # The kernel fills fresh memory with zeros page by page, which takes longer than what is done with it later; of huge
    # pages it needs a five-hundredth. Children that are forked find zeros there: a disk that fills the pages of a read
    # would fill those of the child on kernels that copy them on the next write. They must find something, since who
    # frees the buffer in a child would else unmap what the child has mapped there meanwhile (as with MADV_DONTFORK).
    # Private, not shared: the kernel gives shared anonymous memory in small pages only (docs/adr/0006).
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # an older kernel: children have a copy
        memory.madvise(_WIPE_ON_FORK)
    if nbytes >= _HUGE_FROM_BYTES:
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def prefer_huge_pages(memory: memoryview) -> None:
    """Ask the kernel for huge pages below fresh, writable memory. Pages that were already touched remain unchanged."""
    import ctypes

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    # madvise refuses an address that is not on a page, and rounds a length up: round both inwards, so no page of
    # other data is touched.
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (address + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    # A kernel without them says so, and nothing else is different then.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_HUGEPAGE)


def is_aligned(data: memoryview) -> bool:
    """Whether `data` is in an `aligned_buffer` or a mapping of `fs.mapping`, possibly from inside a page on."""
    ctypes = sys.modules.get("ctypes")  # whose arrays those mappings are; not imported, there are none
    return isinstance(data.obj, mmap.mmap) or (ctypes is not None and isinstance(data.obj, ctypes.Array))
