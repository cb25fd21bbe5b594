"""Compare a blob on the disk with bytes that a save has in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.fs import direct
from ckstore.fs.buffers import GRAIN_BYTES, aligned_buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckstore.fs.inside import Inside
    from ckstore.model.digest import Algorithm

# The save asks between two steps whether it has read long enough (docs/adr/0010).
STEP_BYTES = 2**20


def reading_buffer() -> memoryview:
    """Return memory for `agrees_to`; not used by others meanwhile."""
    return aligned_buffer(STEP_BYTES + GRAIN_BYTES)


def agrees_to(
    path: Inside, data: memoryview, start: int, *, algorithm: Algorithm, buffer: memoryview, go_on: Callable[[], bool]
) -> int | None:
    """Compare the bytes of a file from `start` on with `data`, as the disk has them; return how far, or None.

    None: they differ. They are compared by digests of both, which other threads can run beside; to compare bytes they
    cannot. `go_on` is asked before each step of up to `STEP_BYTES`.
    """
    at = 0
    with direct.opened_uncached(path) as file:
        while at < len(data) and go_on():
            # Past the page cache, which has what was written and not what the disk kept.
            part = file.read(start + at, start + min(len(data), at + STEP_BYTES), buffer)
            if not part or algorithm.digest(part) != algorithm.digest(data[at : at + len(part)]):
                return None
            at += len(part)
    return start + at
