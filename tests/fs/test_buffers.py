"""Memory of direct reads and writes, and what a fork does to it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

from ckstore.fs.buffers import aligned_buffer

_BYTES = 8 * 2**20


def test_a_child_that_frees_a_buffer_of_its_parent_keeps_its_own_memory() -> None:
    # The loader of a trainer forks while a save has buffers. Freed in the child, they must not take with them what the
    # child has mapped since: it would die by SIGSEGV, or another mapping would come to lie there.
    buffer = aligned_buffer(_BYTES)

    def work() -> None:
        nonlocal buffer
        own = [mmap.mmap(-1, _BYTES) for _ in range(16)]  # one of them lies where the buffer does not
        for memory in own:
            memory[-1] = memory[0] = 7
        del buffer
        if any(memory[0] != 7 or memory[-1] != 7 for memory in own):
            os._exit(2)

    assert _exit_code_of(work) == 0


def test_a_child_gets_nothing_of_what_is_in_a_buffer() -> None:
    buffer = aligned_buffer(_BYTES)
    buffer[:] = b"\x07" * _BYTES

    def work() -> None:
        if buffer.tobytes().strip(b"\x00"):
            os._exit(2)

    assert _exit_code_of(work) == 0
    assert buffer[-1] == 7


def _exit_code_of(work: Callable[[], None]) -> int:
    """Return how a forked child ended: with 0 if it did the work, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
