"""Bounds on a catalog that is forged, damaged or copied, and the choice of its journal (docs/adr/0002-catalog.md).

Pages that point to one another in a ring make a small file look like an endless one. An honest one has each row once,
so the rows and the text that a statement gives, and the steps it takes, are in proportion to its bytes; anything beyond
is damage. Measured with 1,000 checkpoints in 1.5 MB: a list takes 18,000 steps, SQLite's whole test 470,000.

Steps of SQLite's virtual machine are counted, not seconds: a slow disk or a busy machine is no damage. A million take
about 25 ms. The counter is C: in a progress handler of Python a signal's handler could run, whose exception SQLite's
module swallows.

SQLite's defensive mode, from Python 3.12 on, refuses to change the schema as data, to write to shadow tables, and to
switch the journal off. Python 3.11 cannot set it; there, no statement of this package does any of that, and a schema
with a trigger, a foreign view or a virtual table, which could, is refused (`ckstore_migrations.schema`).

The files beside a catalog are looked at before SQLite opens it: SQLite plays back what lies beside a database, and
deletes the *super-journal* that a rollback journal names at its end, wherever that file lies. ckstore never writes one,
so a set of files that its own protocol would not have left is not opened at all, but put aside whole and rebuilt.
Between this look and SQLite's opening a neighbour could swap a file only in a directory that they may write to, and no
catalog lies in one: in a store of a group each user's is in a directory of their own.

Source: sqlite.org/fileformat2.html section 3, and `readSuperJournal` in SQLite's pager.c.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import sys
from typing import TYPE_CHECKING, Any

from ckstore.catalog.forms import NotOfItsForm
from ckstore.fs import files, peek

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# SQLite calls the counter after so many steps; more often would cost time, and the bound need not be exact.
_CALL_STEPS = 1000
# About a second: no catalog, however small, is called damaged by a join that was not foreseen.
_LEAST_STEPS = 40_000_000
# SQLite's whole test, the longest statement, takes a third of a step for each byte.
_STEPS_PER_BYTE = 20
_LEAST_ROWS = 1000
_ROW_BYTES = 4
"""No row takes less in a file, with its pointer."""
_LEAST_TEXT_BYTES = 2**20
_TEXT_PER_BYTE = 8
"""Rows that are joined give a digest and a name again for each few bytes of a use."""
# Rows are asked for in batches whose worst case fits into memory, so that the check comes before a forged file has
# filled it.
_BATCH_MOST = 256
_BATCH_TEXT_BYTES = 2**29

_LIMITS = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 2**26,  # rows are listed by their numbers, 100,000 of them
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 8,  # foreign keys delete by such
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


class BoundedCursor(sqlite3.Cursor):
    """A cursor that gives no more rows and text than the file of its connection can hold."""

    def fetchall(self) -> list[Any]:
        """Return all rows.

        Raises:
            NotOfItsForm: There are more than an honest file has.
        """
        connection = self.connection
        if not isinstance(connection, BoundedConnection):
            return super().fetchall()
        rows: list[Any] = []
        text_bytes = 0
        while batch := self.fetchmany(connection.batch_rows):
            rows += batch
            text_bytes += sum(map(_length, zip(*batch, strict=True)))
            if len(rows) > connection.most_rows or text_bytes > connection.most_text_bytes:
                msg = (
                    f"wanted no more rows and text than the file can hold, found {len(rows)} rows of {text_bytes} bytes"
                )
                raise NotOfItsForm(msg)
        return rows


class BoundedConnection(sqlite3.Connection):
    """A connection with the limits of this module; `bound` sets them."""

    most_rows = _LEAST_ROWS
    most_text_bytes = _LEAST_TEXT_BYTES
    batch_rows = 1
    _file_bytes = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement with a bounded cursor."""
        return self.cursor(BoundedCursor).execute(sql, parameters)

    def bound(self, file_bytes: int) -> None:
        """Set the limits for a catalog and a log of so many bytes together; to be called before any statement."""
        self._file_bytes = file_bytes
        self.most_rows = _LEAST_ROWS + file_bytes // _ROW_BYTES
        self.most_text_bytes = _LEAST_TEXT_BYTES + _TEXT_PER_BYTE * file_bytes
        self.batch_rows = max(1, min(_BATCH_MOST, _BATCH_TEXT_BYTES // (file_bytes + 1)))
        for limit, most in _LIMITS.items():
            self.setlimit(limit, most)
        if sys.version_info >= (3, 12):
            self.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        self.renew()

    def renew(self, more_rows: int = 0) -> None:
        """Begin to count steps again; `more_rows` is how many rows are to be written."""
        steps = _LEAST_STEPS + _STEPS_PER_BYTE * (self._file_bytes + 100 * more_rows)
        self.set_progress_handler(self._counter(steps), _CALL_STEPS)

    @staticmethod
    def _counter(steps: int) -> Callable[[], int]:
        return itertools.chain(itertools.repeat(0, steps // _CALL_STEPS), itertools.repeat(1)).__next__


def _length(column: Sequence[object]) -> int:
    kinds = set(map(type, column))
    if kinds <= {str, bytes}:
        return sum(map(len, column))  # type: ignore[arg-type]  # all of them have a length
    return sum(len(value) for value in column if isinstance(value, str | bytes)) if kinds & {str, bytes} else 0


_SAFE_BLOCK_BYTES = 4096


def may_be_mapped(path: Path) -> bool:
    """Whether a mapped page of a file beside `path` keeps its room once a byte of it was written."""
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


def set_journal(connection: sqlite3.Connection, *, mapped: bool, durable: bool = True) -> None:
    """Make commits durable, by a log if it may be mapped and the filesystem has shared mappings at all.

    A catalog with the other journal is changed to this one.

    Without `durable` a power cut may undo the last commits, and damages nothing: a log is then synced when it is
    copied into the file, and not for each commit.
    """
    mode = "delete"
    if mapped:
        ((mode,),) = connection.execute("PRAGMA journal_mode=WAL").fetchall()
    if mode == "wal":
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        # `transaction` does it after the commit: in the middle of a commit a full log would make a save wait.
        connection.execute("PRAGMA wal_autocheckpoint=0").fetchall()
    else:
        connection.execute("PRAGMA journal_mode=TRUNCATE").fetchall()
        # EXTRA syncs the directory too: else a power cut could bring the journal back, which rolls an acknowledged
        # commit back.
        connection.execute("PRAGMA synchronous=EXTRA")


SUFFIXES = ("-wal", "-shm", "-journal")
"""What SQLite may put beside a database."""

_MAGIC = bytes.fromhex("d9d505f920a163d7")
_PAGE_COUNT_AT = 16
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LOG = b"\x02\x02"
_VERSIONS_AT = 18


def why_strange(path: Path) -> str:
    """Return why the catalog at `path` and what lies beside it are not what ckstore leaves; empty if they may be.

    Raises:
        FileNotFoundError: There is no catalog.
    """
    # lstat for the file: a symlink there would have SQLite write to a file elsewhere.
    folder, database = path.parent.stat(), path.lstat()
    for suffix in ("", *SUFFIXES):
        try:
            found = database if not suffix else os.lstat(f"{path}{suffix}")
        except FileNotFoundError:
            continue
        owners = {os.geteuid(), database.st_uid if suffix else folder.st_uid}
        if problem := _why_strange_file(found, folder, owners):
            return f"{path.name}{suffix} {problem}" if suffix else problem
        if suffix == "-journal" and found.st_size and _names_another(path):
            return f"{path.name}{suffix} names a second journal, which SQLite would delete; ckstore never writes one"
    return ""


def _why_strange_file(found: os.stat_result, folder: os.stat_result, owners: set[int]) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_nlink > 1:
        return f"has {found.st_nlink} hard links; writing to it would change a file elsewhere"
    if found.st_uid not in owners:
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & _WRITABLE_BY_OTHERS and not folder.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _names_another(path: Path) -> bool:
    """Whether a journal ends as one with the name of a super-journal does."""
    # SQLite's locks are on the database and on its map, so that closing a descriptor of the journal releases none.
    with files.opened_to_read(f"{path}-journal") as fd:
        end = os.fstat(fd).st_size
        # SQLite looks for the name at the end only, so only the end is looked at.
        return os.pread(fd, len(_MAGIC), max(0, end - len(_MAGIC))) == _MAGIC


def is_stray_journal(path: Path) -> bool:
    """Whether a rollback journal with something in it lies beside a database that has a log.

    A process can die between the two while it makes a catalog: then the journal says that there was none before.
    No connection of this process may be open: closing the database here would release its locks.
    """
    try:
        with files.opened_to_read(f"{path}-journal") as fd:
            head = os.pread(fd, _PAGE_COUNT_AT + 4, 0)
    except FileNotFoundError:
        return False
    if not head.startswith(_MAGIC) or not int.from_bytes(head[_PAGE_COUNT_AT:], "big"):
        return False
    with files.opened_to_read(path) as fd:
        return os.pread(fd, len(_LOG), _VERSIONS_AT) == _LOG
