"""Open, check and close the catalog, with a new connection for each operation (docs/adr/0002-catalog.md).

A writer takes an exclusive flock on the directory of the catalog. It then opens the file, runs one transaction between
`BEGIN IMMEDIATE` and `COMMIT`, truncates the write-ahead log (WAL, or log), closes the file, and only then releases the
flock. A commit that need not be durable leaves its rows in the log while the log is short. A reader takes no flock.

A statement with unread rows keeps its connection open after `close()`. So this module, `rows` and `queries` fetch all
rows at once.

A catalog may be forged, damaged or copied. If its pages refer to one another in a ring, a small file seems endless. In
an intact catalog, each row occurs once. So the size of the file limits the rows, the text and the number of steps of a
statement. A statement that exceeds these limits indicates damage. With 1,000 checkpoints in 1.5 MB, a list takes 18,000
steps, and SQLite's integrity check takes 470,000 steps. The limit counts steps of SQLite's virtual machine instead of
seconds, because a slow disk or a busy machine is no damage. A million steps take about 25 ms. The counter is
implemented in C. In a progress handler in Python, a signal handler could run, and Python's SQLite module would ignore
its exception.

Python 3.12 and later can set SQLite's defensive mode, which refuses to change the schema as data, to write to shadow
tables, and to switch the journal off. No statement of this package does any of these things. A schema that could do
them has a trigger, a foreign view or a virtual table, and `ckstore_migrations.schema` refuses such a schema.

SQLite replays the journal files of a database. A rollback journal can name a *super-journal* at its end, and SQLite
deletes this file, wherever it is. ckstore never writes a super-journal. So this module does not open a catalog with a
set of files that ckstore would not have left. Such a catalog is set aside and rebuilt. Between this check and the
opening by SQLite, another user could swap a file, but only in a directory to which that user may write. No catalog is
in such a directory. In a store that a group of users shares, each user's catalog is in that user's own directory.

The format of the journal is documented in section 3 of sqlite.org/fileformat2.html, and in `readSuperJournal` of
SQLite's pager.c.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ckstore.catalog import row_checks
from ckstore.catalog.row_checks import NotOfItsForm
from ckstore.errors import CatalogFull, CatalogProblem, CatalogUnavailable, InUse, NewerFormat
from ckstore.fs import files
from ckstore.fs.locks import DirectoryLock, lock_exclusive
from ckstore_migrations import APPLICATION_ID, VERSION
from ckstore_migrations.schema import is_schema_of

# A reader can read the directories instead, so it need not wait for long.
_READ_TIMEOUT_S = 2.0
# The minimum wait, even after the deadline. Without it, SQLite would fail at the first busy page.
_LEAST_WAIT_S = 0.05
# A transaction with 20,000 pieces changes pages all over the index. Pages that do not fit into the cache are written
# before the transaction ends.
_CACHE_KIB = 64 * 1024

# A copied catalog may be forged. So its schema may not call functions, and its cells are checked. No page is mapped,
# because access to a mapped page of a truncated file would kill the process with SIGBUS.
_PRAGMAS = ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY")
_TRIED_BYTES = 64 * 1024
# A save of 100 tensors adds 0.1 to 0.4 MB to the log. Each opening reads the log, which takes 0.8 ms for 1 MiB.
# Emptying the log requires three fsyncs.
_LOG_MOST_BYTES = 2**20
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
"""The errors of SQLite on a full disk or an exceeded quota. The last two can have other causes."""
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,  # for example, a table of this schema version is missing
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_NOTADB,
}

# SQLite calls the counter once in this many steps. More calls would cost time, and the limit need not be exact.
_CALL_STEPS = 1000
# The minimum limit, which takes about a second. With a lower limit, an unforeseen join could make a small catalog seem
# damaged.
_LEAST_STEPS = 40_000_000
# The longest statement is SQLite's integrity check, which takes a third of a step for each byte.
_STEPS_PER_BYTE = 20
_LEAST_ROWS = 1000
_ROW_BYTES = 4
"""The minimum size of a row in the file, including the pointer to the row."""
_LEAST_TEXT_BYTES = 2**20
_TEXT_PER_BYTE = 8
"""The maximum number of bytes of text for each byte of the file. A join repeats a digest and a name for each use."""
# Rows are fetched in batches that fit into memory in the worst case, so that a forged file is detected before it fills
# the memory.
_BATCH_MOST = 256
_BATCH_TEXT_BYTES = 2**29

_LIMITS = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 2**26,  # a statement may list the numbers of 100,000 rows
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 8,  # SQLite deletes rows for foreign keys by triggers
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

# SQLite records its locks in the memory of the process. A child that was forked while a connection was open inherits
# this record without the locks, so it must not open the same file.
_open: set[object] = set()
_opening = threading.RLock()  # reentrant, because a signal handler may open the catalog while its thread opens it
_forked_while_open = False


def _look_in_child() -> None:
    global _forked_while_open, _opening  # noqa: PLW0603
    _opening = threading.RLock()  # another thread of the parent may have held the old lock at the fork
    if _open:
        _forked_while_open = True
        _open.clear()


os.register_at_fork(after_in_child=_look_in_child)


_HINTS: dict[CatalogProblem, str] = {
    "missing": "open the store for writing, or run: ckstore reindex",
    "behind": "open the store for writing to bring it up to date",
    "newer": "use the newer ckstore that wrote it",
    "damaged": "rebuild it from the checkpoints: ckstore reindex",
    "unreadable": "",
}


def unavailable(path: Path, found: str, why: CatalogProblem) -> CatalogUnavailable:
    """Return the error for the catalog at `path`. `found` completes the message after the path."""
    return CatalogUnavailable(f"the catalog {path} {found}", why=why, hint=_HINTS[why])


class Examined(NamedTuple):
    """The state of a catalog before it was opened."""

    identity: tuple[int, int]  # its device and inode number
    file_bytes: int  # the size of the database and its log
    may_map: bool  # the result of `may_be_mapped`


def examine(path: Path, *, alone: bool) -> Examined:
    """Examine the files of the catalog. Raise `CatalogUnavailable` if ckstore would not have left such files.

    If `alone` is true, this process has no open connection. Then this function may open and close the database without
    releasing locks of SQLite.
    """
    try:
        database = path.lstat()  # through a symlink, SQLite would write to another file
        found, strange = _beside(path, database)
        if not strange and alone and found.get("-journal") and _is_stray_journal(path):
            strange = f"{path.name}-journal exists next to a database that uses a write-ahead log"
        if not strange:
            return Examined((database.st_dev, database.st_ino), found[""] + found.get("-wal", 0), may_be_mapped(path))
    except FileNotFoundError as error:  # or another process has renamed it to rebuild it
        raise unavailable(path, "is missing", "missing") from error
    except OSError as error:
        raise unavailable(path, f"cannot be examined: {error.strerror}", "unreadable") from error
    raise unavailable(path, f"has files that ckstore would not have left: {strange}", "damaged")


_SAFE_BLOCK_BYTES = 4096


def may_be_mapped(path: Path) -> bool:
    """Whether the index of a log may be mapped on this filesystem, so that a full disk cannot cause SIGBUS.

    This is so if a mapped page keeps its disk space after one byte of the page was written.
    """
    if os.statvfs(path).f_frsize < _SAFE_BLOCK_BYTES:
        return False
    if os.major(path.stat().st_dev):  # a block device, which btrfs never reports; this avoids an import of ctypes
        return True
    from ckstore.fs.host import statfs

    return statfs.magic_number(path) != statfs.BTRFS


SUFFIXES = ("-wal", "-shm", "-journal")
"""The suffixes of SQLite's own files for a database."""

_MAGIC = bytes.fromhex("d9d505f920a163d7")
_PAGE_COUNT_AT = 16
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LOG = b"\x02\x02"
_VERSIONS_AT = 18


def _beside(path: Path, database: os.stat_result) -> tuple[dict[str, int], str]:
    """Return the sizes of the catalog and its journal files, and the reason if ckstore would not have left such files.

    Otherwise, the reason is an empty text.
    """
    sizes: dict[str, int] = {}
    folder = path.parent.stat()
    for suffix in ("", *SUFFIXES):
        try:
            found = database if not suffix else os.lstat(f"{path}{suffix}")
        except FileNotFoundError:
            continue
        owners = {os.geteuid(), database.st_uid if suffix else folder.st_uid}
        if problem := _why_strange_file(found, folder, owners):
            return sizes, f"{path.name}{suffix} {problem}" if suffix else problem
        if suffix == "-journal" and found.st_size and _names_another(path):
            named = f"{path.name}{suffix} names a second journal"
            return sizes, f"{named}, which SQLite would delete; ckstore never writes one"
        sizes[suffix] = found.st_size
    return sizes, ""


def _why_strange_file(found: os.stat_result, folder: os.stat_result, owners: set[int]) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_nlink > 1:
        return f"has {found.st_nlink} hard links; writing to it would also change the file under its other names"
    if found.st_uid not in owners:
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & _WRITABLE_BY_OTHERS and not folder.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _names_another(path: Path) -> bool:
    """Whether a journal ends with the name of a super-journal."""
    # SQLite's locks are on the database and on the index of its log, so closing a descriptor of the journal releases no
    # lock.
    with files.opened_to_read(f"{path}-journal") as fd:
        end = os.fstat(fd).st_size
        # SQLite reads the name only at the end of the file.
        return os.pread(fd, len(_MAGIC), max(0, end - len(_MAGIC))) == _MAGIC


def _is_stray_journal(path: Path) -> bool:
    """Whether a database with a log also has a non-empty rollback journal."""
    # A process that died while it created a catalog may leave both a log and a journal. The journal then has a page
    # count of 0.
    try:
        with files.opened_to_read(f"{path}-journal") as fd:
            head = os.pread(fd, _PAGE_COUNT_AT + 4, 0)
    except FileNotFoundError:
        return False
    if not head.startswith(_MAGIC) or not int.from_bytes(head[_PAGE_COUNT_AT:], "big"):
        return False
    with files.opened_to_read(path) as fd:
        return os.pread(fd, len(_LOG), _VERSIONS_AT) == _LOG


class BoundedCursor(sqlite3.Cursor):
    """A cursor that raises if a statement returns more rows or text than the file of its connection can contain."""

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        connection = self.connection
        if not isinstance(connection, BoundedConnection):
            return super().fetchall()
        rows: list[Any] = []
        text_bytes = 0
        while batch := self.fetchmany(connection.batch_rows):
            rows += batch
            text_bytes += sum(map(_length, zip(*batch, strict=True)))
            if len(rows) > connection.most_rows or text_bytes > connection.most_text_bytes:
                raise NotOfItsForm(
                    f"wanted no more rows and text than the file can hold, found {len(rows)} rows of {text_bytes} bytes"
                )
        return rows


class BoundedConnection(sqlite3.Connection):
    """A connection with the limits of this module; `bound` sets them."""

    may_map = False
    """Whether SQLite may map the index of the log."""
    most_rows = _LEAST_ROWS
    most_text_bytes = _LEAST_TEXT_BYTES
    batch_rows = 1
    _file_bytes = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement with a bounded cursor."""
        return self.cursor(BoundedCursor).execute(sql, parameters)

    def bound(self, file_bytes: int) -> None:
        """Set the limits for a catalog and log of `file_bytes`. Call this method before any statement."""
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
        """Restart the count of steps. `more_rows` is the number of rows that will be written."""
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


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BoundedConnection]:
    """Open the catalog to read one consistent state, without a flock and without changes."""
    # A connection with mode=ro cannot checkpoint the log, so it needs no flock (docs/adr/0002).
    with _translated(path, for_writing=False), _opened(path, "ro", _READ_TIMEOUT_S) as connection:
        connection.execute("PRAGMA query_only=ON")
        # All statements of the block read the same state, whatever writers commit meanwhile.
        connection.execute("BEGIN")
        check_header(connection, path)
        yield connection


@contextlib.contextmanager
def writing(path: Path, *, timeout_s: float, durable: bool = True) -> Iterator[BoundedConnection]:
    """Open the catalog for one transaction, which is durable after the block. If the block raises, nothing is changed.

    The block must not use the catalog in any other way, because the flock is held. If `durable` is false, a power cut
    may undo the transaction, and nothing is synced while the log is short.
    """
    deadline = time.monotonic() + timeout_s
    # The flock is held from the beginning to the end, because SQLite up to 3.51.2 can damage the file if one process
    # checkpoints while another commits.
    with (
        locked(path, timeout_s=timeout_s),
        contextlib.ExitStack() as closed_last,
        opened_for_writing(path, deadline) as connection,
    ):
        check_header(connection, path, for_writing=True)
        prepare_to_write(connection, durable=durable)
        with transaction(connection):
            yield connection
        is_log_short = False
        if not durable and connection.may_map:
            with contextlib.suppress(OSError):  # there is no log
                is_log_short = os.lstat(f"{path}-wal").st_size <= _LOG_MOST_BYTES
        if is_log_short:
            with contextlib.suppress(sqlite3.Error):  # after an error, closing empties the log
                closed_last.enter_context(_keeping_log(path))
        else:
            empty_log(connection)


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[DirectoryLock]:
    """Hold the flock of the catalog's writers.

    The lock is on the directory of the catalog, usually the store. If the catalog of a shared store is on a local disk,
    no other host needs the lock.
    """
    try:
        # The file itself is not locked, because SQLite has its own locks on the file, and the file may be renamed.
        lock = lock_exclusive(path.parent, timeout_s=timeout_s)
    except OSError as error:
        msg = f"the directory of the catalog, {path.parent}, cannot be locked: {error.strerror}"
        raise CatalogUnavailable(msg, why="unreadable") from error
    with lock:
        yield lock


@contextlib.contextmanager
def opened_for_writing(path: Path, deadline: float) -> Iterator[BoundedConnection]:
    """Open the existing file without checking or changing it. The flock must be held."""
    timeout_s = max(deadline - time.monotonic(), _LEAST_WAIT_S)
    with _translated(path, for_writing=True), _opened(path, "rw", timeout_s) as connection:
        yield connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction with `BEGIN IMMEDIATE`. Call `empty_log` afterwards."""
    # A deferred transaction that begins to write fails immediately, without waiting, if another writer was faster.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # closing also rolls back; the first error is reported
            connection.execute("ROLLBACK")
        raise


def empty_log(connection: sqlite3.Connection) -> None:
    """Copy the log into the database, and truncate the log."""
    # The commit is already in the log. If a reader or a full disk prevents the truncation, this is no failure, because
    # the next writer truncates the log.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextlib.contextmanager
def _keeping_log(path: Path) -> Iterator[None]:
    """Keep a connection of a reader open during the block, since closing the last connection would empty the log."""
    # Python 3.11 cannot set SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, which would also prevent this.
    token = object()
    _open.add(token)
    try:
        with contextlib.closing(_connect(path, "ro", _LEAST_WAIT_S)) as reader:
            header(reader)  # the first statement takes the lock of a reader
            yield
    finally:
        _open.discard(token)


def prepare_to_write(connection: BoundedConnection, *, durable: bool = True) -> None:
    """Set the pragmas for a writer, and the durability of commits."""
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    set_journal(connection, may_map=connection.may_map, durable=durable)


def set_journal(connection: sqlite3.Connection, *, may_map: bool, durable: bool = True) -> None:
    """Make commits durable, with a log if its index may be mapped and the filesystem supports shared mappings.

    Otherwise, a rollback journal is used. A catalog with the other kind of journal is converted. If `durable` is false,
    the log is only synced when it is copied into the file, so a power cut may undo the last commits, but damages
    nothing.
    """
    mode = "delete"
    if may_map:
        ((mode,),) = connection.execute("PRAGMA journal_mode=WAL").fetchall()
    if mode == "wal":
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        # `empty_log` copies the log after the commit. If SQLite copied it during a commit, a save would have to wait.
        connection.execute("PRAGMA wal_autocheckpoint=0").fetchall()
    else:
        connection.execute("PRAGMA journal_mode=TRUNCATE").fetchall()
        # EXTRA also syncs the directory. Otherwise, a power cut could restore the journal, which would roll back an
        # acknowledged commit.
        connection.execute("PRAGMA synchronous=EXTRA")


def sqlite_version() -> tuple[int, int, int]:
    """Return the version of the SQLite library that is in use."""
    return sqlite3.sqlite_version_info[0], sqlite3.sqlite_version_info[1], sqlite3.sqlite_version_info[2]


def header(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the application id and the version of the schema, or (0, 0) for an empty database."""
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    return application, version


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether the database is empty, for example because the process that created it died."""
    return not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()


def check_header(connection: sqlite3.Connection, path: Path, *, for_writing: bool = False) -> None:
    """Check that this is a catalog of the version that this ckstore knows."""
    application, version = header(connection)
    # If a process dies after it created the file, the next writer creates the tables.
    if application == 0 and is_empty(connection):
        raise unavailable(path, "is empty", "missing")
    if application != APPLICATION_ID:
        raise unavailable(path, f"is a database with application id {application:#x}, not ckstore's", "damaged")
    if version > VERSION:
        refuse_newer(path, version, for_writing=for_writing)
    if version < VERSION and is_schema_of(connection, version):
        raise unavailable(path, f"has schema version {version}; this ckstore uses version {VERSION}", "behind")
    if version < VERSION:  # or a version of a draft, which has no migration
        raise unavailable(path, f"does not have a schema of version {version} that can be migrated", "damaged")
    if not is_schema_of(connection, VERSION):
        raise unavailable(path, "has tables, views or indexes that differ from what ckstore makes", "damaged")


def refuse_newer(path: Path, version: int, *, for_writing: bool) -> None:
    """Raise `NewerFormat` for a writer, and `CatalogUnavailable` for a reader."""
    found = f"has schema version {version}; this ckstore knows versions up to {VERSION}"
    if not for_writing:
        raise unavailable(path, found, "newer")
    raise NewerFormat(f"the catalog {path} {found}", hint="use the newer ckstore that wrote it")


@contextlib.contextmanager
def _opened(path: Path, mode: str, timeout_s: float) -> Iterator[BoundedConnection]:
    if _forked_while_open:
        found = "was open in the parent process at the fork, so this process does not open it"
        raise unavailable(path, found, "unreadable")
    token = object()
    try:
        with _opening:
            seen = examine(path, alone=not _open)
            # This needs the lock that is held for `examine`, because a child that is forked now must know that the file
            # is open.
            _open.add(token)
        connection = _connect(path, mode, timeout_s)
        try:
            # Set the limits before any statement, because reading the schema of a forged file may never end.
            connection.bound(seen.file_bytes)
            _check_same(path, seen.identity, "being opened")
            connection.may_map = seen.may_map
            if not connection.may_map:
                # With this mode, SQLite keeps the index of the log in private memory (sqlite.org/wal.html, "Use of WAL
                # Without Shared-Memory"). The mode must be set before the first read, which would map the index.
                connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
            row_checks.install(connection)
            yield connection
        finally:
            connection.close()
        # SQLite opens the log by its name, so a log that was created meanwhile may belong to another database. If the
        # file was removed meanwhile, the written data is in no catalog.
        _check_same(path, seen.identity, "open")
    finally:
        _open.discard(token)


def _connect(path: Path, mode: str, timeout_s: float) -> BoundedConnection:
    connection: BoundedConnection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        factory=BoundedConnection,
    )
    return connection


def _check_same(path: Path, identity: tuple[int, int], when: str) -> None:
    """Raise if the path is no longer the examined file. SQLite opens the file and its log by their names."""
    try:
        found = path.lstat()
    except FileNotFoundError as error:
        raise unavailable(path, "is missing", "missing") from error
    except OSError as error:
        raise unavailable(path, f"cannot be examined: {error.strerror}", "unreadable") from error
    if (found.st_dev, found.st_ino) != identity:
        raise unavailable(path, f"was replaced while it was {when}", "unreadable")


@contextlib.contextmanager
def _translated(path: Path, *, for_writing: bool) -> Iterator[None]:
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a mistake in this program
    except NotOfItsForm as error:
        raise unavailable(path, f"cannot be used: {error}", "damaged") from error
    except UnicodeDecodeError as error:  # SQLite does not check texts
        raise unavailable(path, f"cannot be used: it has text that is not UTF-8: {error}", "damaged") from error
    except sqlite3.Error as error:
        # The low byte is the kind of the error. The other bytes only show where SQLite detected the error.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in _BUSY and for_writing:
            msg = f"the catalog {path} is locked by another program: {error}"
            raise InUse(msg, hint="close the program that has a transaction open in it") from error
        # IOERR and CANTOPEN can have other causes, so `has_room` tries to write a file.
        if code in _FULL and (code == sqlite3.SQLITE_FULL or not files.has_room(path.parent, _TRIED_BYTES)):
            msg = f"the catalog {path} cannot be written: the disk, or a quota on it, is full"
            raise CatalogFull(msg, hint="free space on that disk, or raise the quota") from error
        if code == sqlite3.SQLITE_INTERRUPT:  # the counter of steps has stopped the statement
            found = "cannot be used: a statement takes more steps than it would in an intact catalog of this size"
            raise unavailable(path, found, "damaged") from error
        raise unavailable(path, f"cannot be used: {error}", "damaged" if code in _DAMAGED else "unreadable") from error
