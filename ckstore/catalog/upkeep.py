"""Make, migrate, check and set aside the file of the catalog."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from ckstore.catalog import connection as connections
from ckstore.catalog.unavailable import CatalogUnavailable
from ckstore.errors import CkstoreError
from ckstore.fs import links
from ckstore_migrations import APPLICATION_ID, VERSION

_SUFFIXES = ("-wal", "-shm", "")
_OLDEST_SQLITE = (3, 37, 0)


def create_or_migrate(path: Path, *, timeout_s: float) -> None:
    """Make the catalog, or bring its schema up to date; nothing to do is the usual case, and fast.

    Raises:
        InUse: A lock was not had within `timeout_s` seconds.
        NewerFormat: A newer ckstore made it.
        CatalogUnavailable: It is damaged, or cannot be made here.
    """
    if _is_current(path):
        return
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        wanted = ".".join(map(str, _OLDEST_SQLITE))
        msg = f"the catalog needs SQLite {wanted} or later, found {sqlite3.sqlite_version}"
        raise CatalogUnavailable(msg, why="unreadable", hint="use a Python with a newer SQLite")
    deadline = time.monotonic() + timeout_s
    with connections.locked(path, timeout_s=timeout_s):
        _make_file(path)
        with connections.opened_for_writing(path, deadline) as connection:
            application, version = connections.header(connection)
            if application != APPLICATION_ID and not connections.is_empty(connection):
                connections.check_header(connection, path, for_writing=True)
            if version > VERSION:
                connections.refuse_newer(path, version, for_writing=True)
            connections.set_journal(connection)
            with connections.transaction(connection, path):
                _apply(connection)


def set_aside(path: Path, *, timeout_s: float, force: bool = False) -> Path | None:
    """Move a damaged catalog out of the way; return its new path, or None if there was no need.

    It is checked again under the lock, whole: another process may have made a good one meanwhile.
    `force` moves it without looking.

    Raises:
        InUse: The lock was not had within `timeout_s` seconds.
        CatalogUnavailable: It cannot be moved.
    """
    with connections.locked(path, timeout_s=timeout_s):
        if not os.path.lexists(path):
            return None
        if not force and not problems(path, thorough=True):
            return None
        return _move_aside(path)


def problems(path: Path, *, thorough: bool = False) -> list[str]:
    """Return what is wrong with the catalog, one sentence each; nothing if it is well.

    `thorough` compares the indexes with their tables as well.
    """
    try:
        with connections.reading(path) as connection:
            test = "integrity_check" if thorough else "quick_check"
            rows = connection.execute(f"PRAGMA {test}(20)").fetchall()
            found = [f"{path}: {text}" for (text,) in rows if text != "ok"]
            rows = connection.execute("PRAGMA foreign_key_check").fetchall()
            strays = sorted({f"{table} without {parent}" for table, _, parent, _ in rows})
            return found + [f"{path}: rows of {stray}" for stray in strays]
    except CkstoreError as error:
        return [error.message]


def _is_current(path: Path) -> bool:
    try:
        with connections.reading(path):
            return True
    except CkstoreError:  # the careful way says what it is
        return False


def _make_file(path: Path) -> None:
    if os.path.lexists(path):
        return
    # What is left of a catalog that somebody removed must not be taken for part of the new one.
    if any(os.path.lexists(f"{path}{suffix}") for suffix in _SUFFIXES):
        _move_aside(path)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        found = f"cannot be made: {error.strerror}"
        raise connections.unavailable(path, found, "unreadable") from error


def _apply(connection: sqlite3.Connection) -> None:
    from sqlite_utils import Database

    from ckstore_migrations import migrations

    # sqlite-utils begins a transaction that could not become a writing one when another process is
    # ahead; inside ours it uses savepoints. Plugins of somebody's environment have no place here.
    database = Database(connection, execute_plugins=False, recursive_triggers=False)
    migrations().apply(database)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={VERSION}")


def _move_aside(path: Path) -> Path:
    number = 1
    while os.path.lexists(path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    aside = path.with_name(f"{path.name}.damaged-{number}")
    # The database last: a WAL that stays behind would be played into the next one.
    for suffix in _SUFFIXES:
        try:
            links.rename(Path(f"{path}{suffix}"), Path(f"{aside}{suffix}"))
        except FileNotFoundError:
            continue
        except OSError as error:
            found = f"cannot be moved: {error.strerror}"
            raise connections.unavailable(path, found, "unreadable") from error
    return aside
