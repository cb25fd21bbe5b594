"""Which journal the catalog has: SQLite's write-ahead log, unless a full disk could end the process by it.

The log has an index that is mapped into memory, ``catalog.db-shm``, and who writes to a mapped page for which the
filesystem finds no room gets SIGBUS. SQLite writes one byte of each 4 KiB of that file beforehand. That is enough where
a page then keeps its room; it is not where blocks are smaller (ext4 on a small disk: 1 KiB), nor where every write
takes a new block (btrfs). To look for free space first does not help: others fill the disk meanwhile.

There, the catalog has a rollback journal, and is opened in SQLite's exclusive mode, in which nothing is mapped: not
even that of a catalog which was made elsewhere and copied.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckstore.fs import peek

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_SAFE_BLOCK_BYTES = 4096


def may_be_mapped(path: Path) -> bool:
    """Whether a mapped page of a file beside `path` keeps its room once a byte of it was written.

    Raises:
        OSError: The system refused.
    """
    if peek.free_space(path).block_bytes < _SAFE_BLOCK_BYTES:
        return False
    if os.major(path.stat().st_dev):  # a block device, which btrfs never names: others need not import ctypes
        return True
    from ckstore.fs.host import statfs

    return statfs.magic_number(path) != statfs.BTRFS


def map_nothing(connection: sqlite3.Connection) -> None:
    """Have SQLite keep the index of a log in private memory; to be called before anything is read.

    Source: sqlite.org/wal.html, "Use of WAL Without Shared-Memory".
    """
    connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()


def set_journal(connection: sqlite3.Connection, *, mapped: bool) -> None:
    """Make commits durable, by a log if it may be mapped and the filesystem has shared mappings at all.

    A catalog with the other journal is changed to this one.
    """
    mode = "delete"
    if mapped:
        ((mode,),) = connection.execute("PRAGMA journal_mode=WAL").fetchall()
    if mode == "wal":
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0").fetchall()
    else:
        connection.execute("PRAGMA journal_mode=TRUNCATE").fetchall()
        connection.execute("PRAGMA synchronous=EXTRA")
