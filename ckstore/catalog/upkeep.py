"""Create, migrate, check and set aside the file of the catalog."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from pathlib import Path
from typing import Literal

from ckstore.catalog import connection as connections
from ckstore.catalog.connection import SUFFIXES, unavailable
from ckstore.catalog.row_checks import check_tables
from ckstore.errors import CatalogFull, CatalogUnavailable, CkstoreError, NewerFormat
from ckstore.fs import files, links
from ckstore.fs.dirfd_stat import open_descriptor
from ckstore_migrations import APPLICATION_ID, VERSION
from ckstore_migrations.schema import is_schema_of

SET_ASIDE_KEPT = 3
"""The number of set-aside catalogs of each kind that are kept. Older catalogs are removed."""

Aside = Literal["damaged", "old"]

_OLDEST_SQLITE = (3, 37, 0)


def create_or_migrate(path: Path, store: str, *, timeout_s: float) -> bool:
    """Create the catalog, or update its schema. Return False if the catalog was up to date, which is usual and fast.

    `store` is the uuid of the store, which a new catalog records. It is empty if the uuid is unknown.
    """
    # Most openings find a current catalog, and need no lock. Errors are handled below.
    with contextlib.suppress(CkstoreError), connections.reading(path):
        return False
    _check_sqlite()
    deadline = time.monotonic() + timeout_s
    with connections.locked(path, timeout_s=timeout_s):
        return _create_or_migrate(path, store, deadline)


def replace(path: Path, store: str, *, timeout_s: float) -> Path | None:
    """Set the catalog aside, whatever its state, and create an empty catalog under the same lock.

    Return the new path of the old catalog, or None if there was no catalog. If a newer ckstore made the catalog, raise
    `NewerFormat` and change nothing.
    """
    _check_sqlite()
    deadline = time.monotonic() + timeout_s
    with connections.locked(path, timeout_s=timeout_s):
        aside = None
        if os.path.lexists(path):
            # A catalog of a newer ckstore is kept, because it may have data that this ckstore does not know.
            _refuse_newer(path)
            aside = _move_aside(path, "old")
        _create_or_migrate(path, store, deadline)
        return aside


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        wanted = ".".join(map(str, _OLDEST_SQLITE))
        msg = f"the catalog needs SQLite {wanted} or later, found {sqlite3.sqlite_version}"
        raise CatalogUnavailable(msg, why="unreadable", hint="use a Python with a newer SQLite")


def _create_or_migrate(path: Path, store: str, deadline: float) -> bool:
    """Create or update the catalog like `create_or_migrate`, with the flock already held."""
    # The file is created here, because SQLite would follow symlinks and apply the umask.
    _make_file(path)
    with connections.opened_for_writing(path, deadline) as connection:
        application, version = connections.header(connection)
        if (application, version) == (APPLICATION_ID, VERSION):  # another process was faster
            return False
        if application != APPLICATION_ID and not connections.is_empty(connection):
            connections.check_header(connection, path, for_writing=True)
        if version > VERSION:
            connections.refuse_newer(path, version, for_writing=True)
        if not is_schema_of(connection, version if application else 0):
            raise unavailable(path, f"does not have the schema of version {version}", "damaged")
        connections.prepare_to_write(connection)
        with connections.transaction(connection):
            # All steps are in one transaction, so that a process that dies leaves either the old or the new schema.
            _apply(connection, store)
            if not is_schema_of(connection, VERSION):  # otherwise, the next opening would report damage
                found = "cannot be made: this SQLite writes a schema that ckstore does not know"
                raise unavailable(path, found, "unreadable")
        connections.empty_log(connection)
    return True


def set_aside(path: Path, *, timeout_s: float) -> Path | None:
    """Rename a damaged catalog, and return its new path, or None if the catalog is intact or missing."""
    with connections.locked(path, timeout_s=timeout_s):
        # The catalog is checked again under the lock. If two processes saw the damage, the second one must not rename
        # the new catalog.
        if not os.path.lexists(path) or not problems(path, thorough=True):
            return None
        return _move_aside(path, "damaged")


def _refuse_newer(path: Path) -> None:
    try:
        with connections.reading(path):
            return
    except CatalogUnavailable as error:
        if error.why == "newer":
            raise NewerFormat(error.message, hint=error.hint) from error


def problems(path: Path, *, thorough: bool = False) -> list[str]:
    """Return the problems of the catalog, one sentence each.

    With `thorough`, the indexes are compared with their tables, and the form of every row is checked.
    """
    try:
        with connections.reading(path) as connection:
            test = "integrity_check" if thorough else "quick_check"
            # Twenty messages are enough for a user.
            rows = connection.execute(f"PRAGMA {test}(20)").fetchall()
            found = [f"{path}: {text}" for (text,) in rows if text != "ok"]
            rows = connection.execute("PRAGMA foreign_key_check").fetchall()
            strays = sorted({f"{table} without {parent}" for table, _, parent, _ in rows})
            if thorough:
                check_tables(connection)
            return found + [f"{path}: rows of {stray}" for stray in strays]
    except CkstoreError as error:
        return [error.message]


def _make_file(path: Path) -> None:
    if os.path.lexists(path):
        return
    # The log of a removed catalog must not become part of the new catalog.
    if any(os.path.lexists(f"{path}{suffix}") for suffix in SUFFIXES):
        _move_aside(path, "old")
    try:
        os.close(open_descriptor(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        found = f"cannot be made: {error.strerror}"
        if error.errno in files.NO_SPACE:
            raise CatalogFull(f"the catalog {path} {found}") from error
        raise unavailable(path, found, "unreadable") from error


def _apply(connection: sqlite3.Connection, store: str) -> None:
    from sqlite_utils import Database

    from ckstore_migrations import apply

    # This runs in a transaction, in which sqlite-utils uses savepoints. Otherwise, sqlite-utils would begin a deferred
    # transaction, which fails if another process writes first. Plugins of the user's environment are disabled.
    database = Database(connection, execute_plugins=False, recursive_triggers=False)
    apply(database)
    if store:
        connection.execute(
            "INSERT INTO store (id, uuid) VALUES (1, ?)"
            " ON CONFLICT (id) DO UPDATE SET uuid = excluded.uuid WHERE uuid = ''",
            (store,),
        )
    # The version is set last, so that a file with this version has all preceding changes of the transaction.
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={VERSION}")


def _move_aside(path: Path, kind: Aside) -> Path:
    """Rename the catalog and its log durably, and remove the oldest set-aside catalogs. The flock must be held."""
    # The database is renamed first. If the process then dies, it leaves a log without a database, which `_make_file`
    # never uses for the next catalog. A database without its log could seem intact, although changes are missing.
    try:
        numbers = _numbers_aside(path, kind)
        aside = path.with_name(f"{path.name}.{kind}-{max(numbers, default=0) + 1}")
        for suffix in ("", *SUFFIXES):
            with contextlib.suppress(FileNotFoundError):
                # Files are renamed instead of removed, so that a user can examine the damage.
                links.rename(f"{path}{suffix}", f"{aside}{suffix}")
        # The renames must be durable before a new catalog is created. A power cut must not restore the old log next to
        # the new catalog.
        files.sync_directory(path.parent)
        for number in sorted(numbers, reverse=True)[SET_ASIDE_KEPT - 1 :]:
            for suffix in ("", *SUFFIXES):
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    links.unlink(path.with_name(f"{path.name}.{kind}-{number}{suffix}"))
    except OSError as error:
        raise unavailable(path, f"cannot be set aside: {error.strerror}", "unreadable") from error
    return aside


def names_aside(path: Path, kind: Aside) -> list[str]:
    """Return the names of the catalogs that were set aside next to `path`, oldest first."""
    return [f"{path.name}.{kind}-{number}" for number in sorted(_numbers_aside(path, kind))]


def _numbers_aside(path: Path, kind: Aside) -> set[int]:
    pattern = re.compile(rf"{re.escape(path.name)}\.{kind}-([0-9]{{1,9}})(-wal|-shm|-journal)?")
    matches = (pattern.fullmatch(entry.name) for entry in path.parent.iterdir())
    return {int(match[1]) for match in matches if match}
