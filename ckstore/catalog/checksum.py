"""A checksum for each row of `checkpoints`: a row in which a bit has flipped does not count, and its manifest is read.

It finds accidents. A row that was forged together with its checksum is found where it matters: before anything is
dropped, and before a checkpoint is called the newest, the manifests themselves are read (`ckstore.ops.index.facts`).

The other tables have none:

- `tags`: what a tag points to is read from ``refs/``; opening makes the rows equal to that.
- `blobs`, `uses`, `candidates`: a blob goes only when its link count says that no checkpoint has it.
- `pieces`: a place that the catalog names is read and compared before a save relies on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    import sqlite3

_PLAIN = (
    "id",
    "run",
    "step",
    "manifest_id",
    "content",
    "sequence",
    "created",
    "parent",
    "metrics",
    "metadata",
    "logical_bytes",
    "new_bytes",
    "reused_bytes",
    "leaf_count",
    "dir_inode",
    "manifest_inode",
    "manifest_mtime_ns",
    "manifest_ctime_ns",
)
_FREE_TEXTS = ("writer", "message")
"""Texts that may hold a zero byte, at which `printf` stops, or lone surrogates: they are hashed as bytes."""

_HALF = 2**63

# SQLite puts the columns together: 1.3 ms for 1,000 rows, a third of what Python takes for it.
CHECKSUM = (
    f"row_checksum(CAST(printf('{'%s|' * len(_PLAIN)}', {', '.join(_PLAIN)})"
    f"{''.join(f' || char(0) || {name}' for name in _FREE_TEXTS)} AS BLOB))"
)
"""SQL: the checksum that a row of `checkpoints` must have."""

IS_RIGHT = f"(checksum IS {CHECKSUM})"
"""SQL: whether a row of `checkpoints` is as it was written."""


def install(connection: sqlite3.Connection) -> None:
    """Give a connection the function that `CHECKSUM` calls."""
    connection.create_function("row_checksum", 1, _checksum, deterministic=True)


def _checksum(row: bytes | None) -> int:
    return xxhash.xxh3_64_intdigest(row or b"") - _HALF  # SQLite's integers are signed
