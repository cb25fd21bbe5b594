"""Refuse a save that the filesystem has no room for, before anything is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckstore.errors import InsufficientSpace
from ckstore.ops.packing import PACK_BELOW_BYTES, PACK_BYTES, find_pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckstore.model.digest import Algorithm
    from ckstore.ops.context import Context
    from ckstore.tensors.source import ByteSource

_OWN_INODES = 8
_MARGIN_BYTES = 2**20


def check_space(context: Context, sources: Sequence[ByteSource]) -> None:
    """Compare what a save may write with what is free.

    When everything would fit, nothing is read. Otherwise the chunks are hashed once more, to know which of them the
    store has.

    Raises:
        InsufficientSpace: With the numbers of bytes and inodes.
    """
    status = os.statvfs(context.layout.root)
    free_bytes = status.f_bavail * status.f_frsize
    free_inodes = status.f_favail if status.f_files else None
    chunk_bytes = context.settings.chunk_bytes
    most_bytes = sum(source.nbytes for source in sources) + _MARGIN_BYTES
    most_inodes = sum(-(-source.nbytes // chunk_bytes) for source in sources if source.nbytes >= PACK_BELOW_BYTES)
    small_bytes = sum(source.nbytes + 64 for source in sources if source.nbytes < PACK_BELOW_BYTES)
    most_inodes += -(-small_bytes // (PACK_BYTES - PACK_BELOW_BYTES)) + _OWN_INODES
    if most_bytes <= free_bytes and (free_inodes is None or most_inodes <= free_inodes):
        return
    new_bytes, new_inodes = _predict(context, sources)
    _refuse("bytes", new_bytes, free_bytes, context)
    if free_inodes is not None:
        _refuse("inodes", new_inodes, free_inodes, context)


def _refuse(unit: str, wanted: int, free: int, context: Context) -> None:
    if wanted > free:
        msg = f"the save needs {wanted} {unit}, {free} are free on the filesystem of {context.layout.root}"
        raise InsufficientSpace(msg, hint="drop old checkpoints or make room, then save again; nothing was written")


def _predict(context: Context, sources: Sequence[ByteSource]) -> tuple[int, int]:
    """Return the bytes and inodes that what the store lacks will take; small pieces as far as they are unknown."""
    algorithm = context.algorithm
    wanted: dict[str, int] = {}
    small: dict[str, int] = {}
    for source in sources:
        if source.nbytes < PACK_BELOW_BYTES:
            small[_digest(algorithm, source, 0, source.nbytes)] = source.nbytes
            continue
        for start in range(0, source.nbytes, context.settings.chunk_bytes):
            stop = min(start + context.settings.chunk_bytes, source.nbytes)
            digest = _digest(algorithm, source, start, stop)
            if not context.layout.blob(digest).exists():
                wanted[digest] = stop - start
    found = find_pieces(context, set(small))
    unknown_bytes = sum(nbytes for digest, nbytes in small.items() if digest not in found)
    packs = -(-unknown_bytes // (PACK_BYTES - PACK_BELOW_BYTES))
    return sum(wanted.values()) + unknown_bytes, len(wanted) + packs + _OWN_INODES


def _digest(algorithm: Algorithm, source: ByteSource, start: int, stop: int) -> str:
    view = source.view(start, stop)
    if view is None:
        view = memoryview(bytearray(stop - start))
        source.read_into(start, stop, view)
    return algorithm.digest(view)
