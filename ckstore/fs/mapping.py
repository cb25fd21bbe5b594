"""Map blobs copy-on-write, several of them into one contiguous range of memory if needed, and map shared memory files.

In a private mapping of a blob, the kernel copies a page only when the program writes to it, and the blob never changes.
Python's `mmap` keeps a descriptor open and cannot map a file at a given address, so the C library's function is used.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

_libc = ctypes.CDLL(None, use_errno=True)
# Without these types, ctypes passes and returns 32-bit integers, which are too small for addresses.
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
HUGE_BYTES = 2 * 2**20
"""The size of a huge page of x86-64, and of arm64 with pages of 4 KiB."""
_MADV_COLLAPSE = 25
"""The number of the advice MADV_COLLAPSE of Linux 6.1, on all processors that ckstore supports. Source:
asm-generic/mman-common.h."""
# The value is from linux/mman.h, because Python's mmap has no name for it.
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


@dataclass(frozen=True, slots=True)
class FilePart:
    """The first `length` bytes of an open file. All parts of a range except the last consist of whole pages."""

    fd: int
    length: int


def map_side_by_side(parts: Iterable[FilePart], total: int) -> memoryview:
    """Return `total` bytes of writable memory. They begin with the parts, one after another. Writes are private.

    `parts` may close a descriptor when the next part is requested. The memory is unmapped when no object refers to the
    returned view.
    """
    # The whole range is reserved first, so that MAP_FIXED replaces no other memory.
    base = _map(None, total, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    memory = _unmapped_with(base, total)
    at = base
    for part in parts:
        # A private mapping of a read-only file can be writable, because writes change copies of its pages.
        _map(at, part.length, _READ_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED, part.fd)
        at += part.length
    return memory


def map_file(fd: int, nbytes: int) -> memoryview:
    """Return the first `nbytes` of one open file like `map_side_by_side`, at an address that the kernel chooses."""
    return _unmapped_with(_map(None, nbytes, _READ_WRITE, mmap.MAP_PRIVATE, fd), nbytes)


def map_shared(fd: int, nbytes: int, *, writable: bool) -> memoryview:
    """Return a shared mapping of the first `nbytes` of a file in memory, with huge pages if possible.

    The memory is unmapped when no object refers to the returned view.
    """
    # The kernel uses huge pages only at addresses that are multiples of their size. So a larger range is reserved.
    room_bytes = nbytes + HUGE_BYTES
    base = _map(None, room_bytes, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    memory = _unmapped_with(base, room_bytes)
    start = -base % HUGE_BYTES
    _map(base + start, nbytes, _READ_WRITE if writable else mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd)
    part = memory[start : start + nbytes]
    return part if writable else part.toreadonly()


def gather_huge_pages(memory: memoryview) -> bool:
    """Move the pages of some shared memory into huge pages. Return False if the kernel cannot do so."""
    # The kernel creates each huge page of which at least one small page exists.
    first = ctypes.c_ubyte.from_buffer(memory)
    return bool(_libc.madvise(ctypes.addressof(first), len(memory), _MADV_COLLAPSE) == 0)


def reserve(nbytes: int) -> memoryview:
    """Reserve a range of addresses with `nbytes` zeros, which take no memory until they are read. Never write to it."""
    return _unmapped_with(_map(None, nbytes, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1), nbytes)


def _unmapped_with(base: int, nbytes: int) -> memoryview:
    """Return a view of mapped memory, which is unmapped when no object refers to the view."""
    memory = (ctypes.c_ubyte * nbytes).from_address(base)
    # The memory is not unmapped when the process exits, because other destructors may still use views then.
    weakref.finalize(memory, _libc.munmap, base, nbytes).atexit = False
    return memoryview(memory).cast("B")


def _map(at: int | None, length: int, protection: int, flags: int, fd: int) -> int:
    address = _libc.mmap(at, length, protection, flags, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {length} bytes: {os.strerror(code)}")
    return int(address)
