"""A file in memory that several map: shared, where huge pages can be, and unmapped with the last view of it."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore.fs.mapping import HUGE_BYTES, gather_huge_pages, map_shared

NAME = "ckstore-test-shared"


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create(NAME, os.MFD_CLOEXEC)
    os.ftruncate(made, 3 * HUGE_BYTES)
    yield made
    os.close(made)


def test_what_one_writes_the_other_reads_and_it_goes_with_the_last_view(fd: int) -> None:
    mine = map_shared(fd, 3 * HUGE_BYTES, writable=True)
    theirs = map_shared(fd, 2 * HUGE_BYTES + 5, writable=False)
    part = theirs[2 * HUGE_BYTES :]

    mine[2 * HUGE_BYTES] = 7

    assert (len(theirs), list(part), theirs.readonly, mine.readonly) == (
        2 * HUGE_BYTES + 5,
        [7, 0, 0, 0, 0],
        True,
        False,
    )
    assert ctypes.addressof(ctypes.c_ubyte.from_buffer(mine)) % HUGE_BYTES == 0
    mine.release()
    del mine, theirs
    gc.collect()
    assert part[0] == 7
    assert NAME in Path("/proc/self/maps").read_text(encoding="ascii")
    del part
    gc.collect()
    assert NAME not in Path("/proc/self/maps").read_text(encoding="ascii")


def test_what_is_put_together_in_huge_pages_has_the_same_bytes(fd: int) -> None:
    memory = map_shared(fd, 3 * HUGE_BYTES, writable=True)
    memory[5 : HUGE_BYTES + 9] = b"x" * (HUGE_BYTES + 4)

    gather_huge_pages(memory[: 2 * HUGE_BYTES])  # it depends on the kernel whether it does

    assert memory[:5] == bytes(5)
    assert memory[5 : HUGE_BYTES + 9] == b"x" * (HUGE_BYTES + 4)
    assert memory[HUGE_BYTES + 9 :] == bytes(2 * HUGE_BYTES - 9)
