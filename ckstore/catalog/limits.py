"""Bounds on what a statement may take of a catalog that is forged or damaged: steps, rows, bytes, features of SQLite.

Pages that point to one another in a ring, or many to one, make a small file look like an endless one. An honest one has
each row once, so the rows and the text that a statement gives, and the steps it takes, are in proportion to its bytes.
What goes beyond is damage. Measured with 1,000 checkpoints in 1.5 MB: a list takes 18,000 steps, SQLite's whole test
470,000.

Steps of SQLite's virtual machine are counted, not seconds: a slow disk or a busy machine is no damage. A million take
about 25 ms. The counter is C: in a progress handler of Python a signal's handler could run, whose exception SQLite's
module swallows.

SQLite's defensive mode, from Python 3.12 on, refuses to change the schema as data, to write to shadow tables, and to
switch the journal off. Python 3.11 cannot set it; there, no statement of this package does any of that, and a schema
with a trigger, a foreign view or a virtual table, which could, is refused (`ckstore_migrations.schema`).
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

from ckstore.catalog.forms import NotOfItsForm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CALL_STEPS = 1000
_LEAST_STEPS = 40_000_000
_STEPS_PER_BYTE = 20
_LEAST_ROWS = 1000
_ROW_BYTES = 4
"""No row takes less in a file, with its pointer."""
_LEAST_TEXT_BYTES = 2**20
_TEXT_PER_BYTE = 8
"""Rows that are joined give a digest and a name again for each few bytes of a use."""
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
