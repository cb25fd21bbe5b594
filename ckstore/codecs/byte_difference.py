"""Differences between old and new bytes of the same length, in the two forms that rollout engines apply.

Each difference is one zstd frame. docs/how-to/publish-weights.md describes both forms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

if TYPE_CHECKING:
    from ckstore.model.digest import Buffer

_LEVEL = 1  # the level of other programs that write this layout; higher levels save few bytes and take much longer
_POSITION_BYTES = 4
POSITIONS_MOST_BYTES = 2 ** (8 * _POSITION_BYTES)
"""The number of bytes that an `OverwriteFrame` can address."""


class LargeDifference(Exception):
    """The difference would be larger than the caller allows."""


def changed_bytes(old: Any, new: Any) -> tuple[Any, Any]:
    """Return the positions of the bytes that differ, in ascending order, and their new values."""
    # Words are compared first, because most words are equal, and this takes an eighth of the steps.
    words = len(new) // 8
    old_words, new_words = (one[: 8 * words].view(np.uint64) for one in (old, new))
    differing = np.flatnonzero(old_words != new_words)
    values = new_words[differing].view(np.uint8)
    inner = np.flatnonzero(values != old_words[differing].view(np.uint8))
    rest = 8 * words + np.flatnonzero(old[8 * words :] != new[8 * words :])
    found = np.concatenate([8 * differing[inner // 8] + inner % 8, rest])
    return found, np.concatenate([values[inner], new[rest]])


class XorFrame:
    """The new bytes xor the old bytes. Applying the frame twice restores the old bytes."""

    def __init__(self, nbytes: int) -> None:
        # The frame contains the size of its content, because some readers allocate memory of this size.
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=nbytes)
        self._parts: list[bytes] = []
        self._is_changed = False

    def add(self, _: int, old: Buffer, new: Buffer) -> None:
        """Add the bytes of a part."""
        found = np.frombuffer(old, np.uint8) ^ np.frombuffer(new, np.uint8)
        self._is_changed = self._is_changed or bool(found.any())
        self._parts.append(self._compressor.compress(found.data))

    def skip(self, nbytes: int) -> None:
        """Add a part that did not change."""
        self._parts.append(self._compressor.compress(bytes(nbytes)))

    def end(self) -> bytes | None:
        """Return the frame, or None if nothing changed."""
        return b"".join((*self._parts, self._compressor.flush())) if self._is_changed else None


class OverwriteFrame:
    """The number of changed bytes, their positions, and their new values. The frame can be applied repeatedly."""

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._count = 0
        self._positions: list[Any] = []
        self._values: list[Any] = []

    def add(self, start: int, old: Buffer, new: Buffer) -> None:
        """Add the bytes of a part, which begins at `start`."""
        found, values = changed_bytes(np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8))
        if len(found):
            self._values.append(values)
            self._positions.append((found + start).astype("<u4"))
            # The limit applies to the size before compression, because the uncompressed difference is in memory.
            self._count += len(found)
            if (_POSITION_BYTES + 1) * self._count > self._most_bytes:
                raise LargeDifference

    def skip(self, _: int) -> None:
        """Skip a part that did not change."""

    def end(self) -> bytes | None:
        """Return the frame, or None if nothing changed."""
        if not self._positions:
            return None
        count = np.array([self._count], "<u4")
        arrays = (count, *self._positions, *self._values)
        plain = b"".join(memoryview(one).cast("B") for one in arrays)
        return zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
