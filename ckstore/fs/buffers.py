"""Allocate memory for direct reads and writes."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

GRAIN_BYTES = 4096
"""The alignment of offsets, lengths and memory addresses in direct reads and writes. No disk in use has larger
blocks."""
# Buffers of at least this size use huge pages. A huge page has 2 MiB.
_HUGE_FROM_BYTES = 2 * 2**20
_WIPE_ON_FORK = 18
"""MADV_WIPEONFORK, which Linux supports since 4.14. Python does not define it."""


def aligned_buffer(nbytes: int) -> memoryview:
    """Return private memory of `nbytes` bytes, a multiple of `GRAIN_BYTES`. Large memory uses huge pages."""
    # The kernel fills new memory with zeros page by page, which can take longer than the reads and writes of the
    # buffer. With huge pages, it fills 512 times fewer pages. The memory is private, because shared anonymous memory
    # has only small pages (docs/adr/0006-direct-io.md).
    #
    # A forked child gets zeros in the buffer. If the child shared the pages, some kernels would copy them for the
    # parent at the next write, and a direct read in progress would fill the child's pages. MADV_DONTFORK is not used,
    # because it removes the mapping from the child. Freeing the buffer in the child would then unmap other memory at
    # the same address.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # with an older kernel, children get a copy
        memory.madvise(_WIPE_ON_FORK)
    if nbytes >= _HUGE_FROM_BYTES:
        with suppress(OSError):  # the kernel has no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def prefer_huge_pages(memory: memoryview) -> None:
    """Ask the kernel to use huge pages for new writable memory. Pages that were already accessed do not change."""
    import ctypes

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    # madvise requires the address of a page, and rounds the length up. Both ends are rounded inwards, so that pages
    # with other data are not affected.
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (address + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    # The result is ignored: a kernel without huge pages uses small pages.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_HUGEPAGE)


def is_aligned(data: memoryview) -> bool:
    """Whether `data` is in an `aligned_buffer` or a mapping of `fs.mapping`. `data` may begin within a page."""
    # Mappings of `fs.mapping` are arrays of ctypes. If ctypes was not imported, no mapping exists.
    ctypes = sys.modules.get("ctypes")
    return isinstance(data.obj, mmap.mmap) or (ctypes is not None and isinstance(data.obj, ctypes.Array))
