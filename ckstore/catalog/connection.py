"""Open, check and close the catalog: one connection for each operation, never kept (docs/adr/0002-catalog.md).

Writing: exclusive flock on the directory of the catalog, open, `BEGIN IMMEDIATE`, work, `COMMIT`, truncate the WAL,
close, and only then release the flock. Reading takes no flock.

A statement that still has rows to give keeps its connection open past `close()`. So everything here, in `rows` and in
`queries` fetches all rows at once.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

from ckstore.catalog import forms, limits
from ckstore.catalog.forms import NotOfItsForm
from ckstore.catalog.limits import BoundedConnection
from ckstore.errors import CatalogFull, CatalogProblem, CatalogUnavailable, InUse, NewerFormat
from ckstore.fs import files
from ckstore.fs.locks import DirectoryLock, lock_exclusive
from ckstore_migrations import APPLICATION_ID, VERSION
from ckstore_migrations.schema import is_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A reader has the directories as its second way, and need not wait for long.
_READ_TIMEOUT_S = 2.0
# Also after the deadline: SQLite would else refuse at the first busy page.
_LEAST_WAIT_S = 0.05
# A transaction of 20,000 pieces touches pages all over the index; those that do not fit are written before its end.
_CACHE_KIB = 64 * 1024

# A copied catalog may be forged: its schema may call no function, its cells are looked at, and no page is mapped,
# since a truncated file would end the process by SIGBUS.
_PRAGMAS = ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY")
_TRIED_BYTES = 64 * 1024
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
"""What a full disk, or a quota, is to SQLite; the last two can be something else."""
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,  # no such table: the version says that it is there
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_NOTADB,
}

# SQLite remembers in the process which locks it has. A child that was forked while a connection was
# open inherits that memory without the locks, so it must not open the same file at all.
_open: set[object] = set()
_opening = threading.RLock()  # a signal handler may open the catalog while its thread does
_forked_while_open = False


def _look_in_child() -> None:
    global _forked_while_open, _opening  # noqa: PLW0603
    _opening = threading.RLock()  # another thread of the parent may hold the old one for ever
    if _open:
        _forked_while_open = True
        _open.clear()


os.register_at_fork(after_in_child=_look_in_child)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BoundedConnection]:
    """Open the catalog to read from one state of it; takes no flock and changes nothing."""
    # mode=ro: such a connection cannot checkpoint the log, so it needs no flock (docs/adr/0002).
    with _translated(path, for_writing=False), _opened(path, "ro", _READ_TIMEOUT_S) as connection:
        connection.execute("PRAGMA query_only=ON")
        # One state for all statements of the block, whatever writers commit meanwhile.
        connection.execute("BEGIN")
        check_header(connection, path)
        yield connection


@contextlib.contextmanager
def writing(path: Path, *, timeout_s: float, durable: bool = True) -> Iterator[BoundedConnection]:
    """Open the catalog for one transaction: it is durable after the block, or has not happened.

    Without `durable` a power cut may undo it.

    The block must not use the catalog in any other way: the flock is held.
    """
    deadline = time.monotonic() + timeout_s
    # The flock first and to the end: SQLite up to 3.51.2 can damage the file when one process checkpoints while
    # another commits.
    with locked(path, timeout_s=timeout_s), opened_for_writing(path, deadline) as connection:
        check_header(connection, path, for_writing=True)
        prepare_to_write(connection, path, durable=durable)
        with transaction(connection):
            yield connection


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float) -> Iterator[DirectoryLock]:
    """Hold the flock of the catalog's writers.

    It is on the directory that the catalog lies in, usually that of the store: a catalog on a local
    disk, of a store on a shared one, needs no lock that all hosts can take.
    """
    try:
        # The directory, not the file: SQLite has locks of its own on the file, and the file may be renamed aside.
        lock = lock_exclusive(path.parent, timeout_s=timeout_s)
    except OSError as error:
        msg = f"the directory of the catalog, {path.parent}, cannot be locked: {error.strerror}"
        raise CatalogUnavailable(msg, why="unreadable") from error
    with lock:
        yield lock


@contextlib.contextmanager
def opened_for_writing(path: Path, deadline: float) -> Iterator[BoundedConnection]:
    """Open the file, which must exist, unchecked and unchanged; the flock must be held."""
    timeout_s = max(deadline - time.monotonic(), _LEAST_WAIT_S)
    with (
        _translated(path, for_writing=True),
        _opened(path, "rw", timeout_s) as connection,
    ):
        yield connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one `BEGIN IMMEDIATE`; afterwards move the WAL into the database."""
    # A deferred transaction that becomes a writing one fails at once if another was faster, without waiting.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # closing does it too; the first error is the news
            connection.execute("ROLLBACK")
        raise
    # The commit is durable in the WAL. A reader who keeps it, or a full disk, must not make
    # a failure of that: the next writer truncates it.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def prepare_to_write(connection: sqlite3.Connection, path: Path, *, durable: bool = True) -> None:
    """Have the connection keep what the schema promises, and make its commits durable."""
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    limits.set_journal(connection, mapped=_may_be_mapped(path), durable=durable)


def sqlite_version() -> tuple[int, int, int]:
    """Return the version of the SQLite library that is in use."""
    return sqlite3.sqlite_version_info[0], sqlite3.sqlite_version_info[1], sqlite3.sqlite_version_info[2]


def header(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the application id and the version of the schema; (0, 0) for an empty database."""
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    return application, version


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether it is a database without anything in it, as a creator who died leaves it."""
    return not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()


def check_header(connection: sqlite3.Connection, path: Path, *, for_writing: bool = False) -> None:
    """Check that this is a catalog of the version that this ckstore knows."""
    application, version = header(connection)
    # A process that died after it made the file: the next writer fills it.
    if application == 0 and is_empty(connection):
        raise unavailable(path, "is empty", "missing")
    if application != APPLICATION_ID:
        raise unavailable(path, f"is a database with application id {application:#x}, not ckstore's", "damaged")
    if version > VERSION:
        refuse_newer(path, version, for_writing=for_writing)
    if version < VERSION and is_schema_of(connection, version):
        raise unavailable(path, f"has schema version {version}; this ckstore uses version {VERSION}", "behind")
    if version < VERSION:  # also that of a draft, whose steps are gone: it is made again from the directories
        raise unavailable(path, f"does not have a schema of version {version} that can be migrated", "damaged")
    if not is_schema_of(connection, VERSION):
        raise unavailable(path, "has tables, views or indexes that differ from what ckstore makes", "damaged")


def refuse_newer(path: Path, version: int, *, for_writing: bool) -> None:
    """Raise: `NewerFormat` to a writer, `CatalogUnavailable` to a reader."""
    found = f"has schema version {version}; this ckstore knows versions up to {VERSION}"
    if not for_writing:
        raise unavailable(path, found, "newer")
    raise NewerFormat(f"the catalog {path} {found}", hint="use the newer ckstore that wrote it")


_HINTS: dict[CatalogProblem, str] = {
    "missing": "open the store for writing, or run: ckstore reindex",
    "behind": "open the store for writing to bring it up to date",
    "newer": "use the newer ckstore that wrote it",
    "damaged": "rebuild it from the checkpoints: ckstore reindex",
    "unreadable": "",
}


def unavailable(path: Path, found: str, why: CatalogProblem) -> CatalogUnavailable:
    """Return the error that says what was found at `path`."""
    return CatalogUnavailable(f"the catalog {path} {found}", why=why, hint=_HINTS[why])


@contextlib.contextmanager
def _opened(path: Path, mode: str, timeout_s: float) -> Iterator[BoundedConnection]:
    if _forked_while_open:
        found = "was open in the parent process at the fork, so this process does not open it"
        raise unavailable(path, found, "unreadable")
    token = object()
    try:
        with _opening:
            identity = _identity(path)
            _refuse_strange(path)
            # In the same lock as the look: a child forked in between must know that the file was being opened.
            _open.add(token)
        mapped = _may_be_mapped(path)
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=timeout_s,
            isolation_level=None,
            factory=BoundedConnection,
        )
        try:
            # Before any statement: reading the schema of a forged file may take for ever.
            connection.bound(_file_bytes(path))
            if _identity(path) != identity:
                raise unavailable(path, "was replaced while it was being opened", "unreadable")
            # Before the first read, which maps the index of the log.
            if not mapped:
                limits.map_nothing(connection)
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
            forms.install(connection)
            yield connection
        finally:
            connection.close()
        # SQLite opens the log by its name: one that was put there since belongs to another database. And what was
        # written to a file that was removed is in no catalog.
        if _identity(path) != identity:
            raise unavailable(path, "was replaced while it was open", "unreadable")
    finally:
        _open.discard(token)


def _file_bytes(path: Path) -> int:
    """Return the size of the database and its log in bytes."""
    total = 0
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            total += file.lstat().st_size
    return total


def _may_be_mapped(path: Path) -> bool:
    try:
        return limits.may_be_mapped(path)
    except FileNotFoundError as error:  # renamed meanwhile: another process rebuilds it
        raise unavailable(path, "is missing", "missing") from error
    except OSError as error:
        raise unavailable(path, f"cannot be examined: {error.strerror}", "unreadable") from error


def _refuse_strange(path: Path) -> None:
    """Raise unless the files of the catalog are what ckstore leaves; no connection of this process is being opened."""
    try:
        strange = limits.why_strange(path)
        if not strange and not _open and limits.is_stray_journal(path):
            strange = f"{path.name}-journal lies beside a database that uses a write-ahead log"
    except FileNotFoundError as error:
        raise unavailable(path, "is missing", "missing") from error
    except OSError as error:
        raise unavailable(path, f"cannot be examined: {error.strerror}", "unreadable") from error
    if strange:
        raise unavailable(path, f"is not as ckstore leaves it: {strange}", "damaged")


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.lstat()
    except FileNotFoundError as error:
        raise unavailable(path, "is missing", "missing") from error
    except OSError as error:
        raise unavailable(path, f"cannot be examined: {error.strerror}", "unreadable") from error
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def _translated(path: Path, *, for_writing: bool) -> Iterator[None]:
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a mistake in this program
    except NotOfItsForm as error:
        raise unavailable(path, f"cannot be used: {error}", "damaged") from error
    except UnicodeDecodeError as error:  # SQLite does not look into texts
        raise unavailable(path, f"cannot be used: it holds text that is not UTF-8: {error}", "damaged") from error
    except sqlite3.Error as error:
        # The low byte is the kind; the rest only says where in SQLite it was noticed.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in _BUSY and for_writing:
            msg = f"the catalog {path} is locked by another program: {error}"
            raise InUse(msg, hint="close the program that has a transaction open in it") from error
        # IOERR and CANTOPEN have other causes too: a trial with a file says whether there is room.
        if code in _FULL and (code == sqlite3.SQLITE_FULL or not files.has_room(path.parent, _TRIED_BYTES)):
            msg = f"the catalog {path} cannot be written: the disk, or a quota on it, is full"
            raise CatalogFull(msg, hint="free space there, or raise the quota") from error
        if code == sqlite3.SQLITE_INTERRUPT:  # by the bound on its steps
            found = "cannot be used: a statement takes more steps than it would in a sound catalog of this size"
            raise unavailable(path, found, "damaged") from error
        raise unavailable(path, f"cannot be used: {error}", "damaged" if code in _DAMAGED else "unreadable") from error
