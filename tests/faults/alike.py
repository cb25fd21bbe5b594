"""Tell whether two cases left the same, so that the store of the second need not be looked at again.

Whatever harm a scenario meets, what it leaves is one of few stores: most calls that fail are tried again with success.
To be comparable, cases run with a clock that stands still and names that are drawn in the same order. Not compared are
inode numbers (which file has which name is), times that no program set, which process noted an event, how long it took
and how it words a failure, and how SQLite lays out in its files what it holds: rows, schema and soundness are.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import re
import secrets
import shutil
import sqlite3
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

from ckstore.catalog import row_checks
from ckstore.fs import blob_time
from ckstore.model.digest import ALGORITHMS, is_digest
from tests.support.memory import memory_folder

_NOW = dt.datetime(2026, 11, 21, 3, 0, tzinfo=dt.UTC)
_digest = ALGORITHMS["xxh3_128"].digest

_INODE = re.compile(r"\d+")
_OF_CATALOG = ("-wal", "-shm", "-journal")
_PRAGMAS = ("integrity_check", "application_id", "user_version", "journal_mode", "page_size")


class _Meta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, dt.date) and hasattr(instance, "hour")


@cache
def clock_users() -> list[dict[str, Any]]:
    """Return the members of the modules that have imported the class ``datetime``.

    It looks at each module, and so copies a page of memory for each in a forked child: a parent asks once.
    """
    # Asking a module itself may import what it has lazily.
    every = (getattr(module, "__dict__", {}) for module in [*sys.modules.values()])
    return [members for members in every if members.get("datetime") is dt.datetime]


def hold_still(salt: str) -> None:
    """Stop this process's clock and draw its names from a list; for a forked child, which ends soon.

    Args:
        salt: Another one gives other names.
    """
    real = dt.datetime
    numbers = itertools.count(1)

    class Still(real, metaclass=_Meta):  # type: ignore[misc,valid-type]
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return _NOW.astimezone(tz)

    def name(nbytes: int = 16) -> str:
        return ALGORITHMS["xxh3_128"].digest(f"{salt} {next(numbers)}".encode())[5 : 5 + 2 * nbytes]

    for members in clock_users():
        members["datetime"] = Still
    vars(time)["time"] = _NOW.timestamp
    vars(uuid)["uuid4"] = lambda: uuid.UUID(name())
    vars(secrets)["token_hex"] = name


def picture(folder: Path) -> str:
    """Return a digest of all that is in the directories in `folder`: names, links, modes, contents, catalog."""
    found: dict[str, os.stat_result] = {}
    for where, names, files in os.walk(folder, onerror=_raise):
        own = files if where != str(folder) else []  # there are the files of those who watch
        for path in (os.path.join(where, name) for name in (*names, *own)):
            found[path] = os.lstat(path)
    names_of: dict[str, str] = {}
    for path in sorted(found):
        shown = os.path.relpath(path, folder)
        shown = shown.removesuffix(f".{found[path].st_ino}")  # as in quarantine/
        names_of.setdefault(str(found[path].st_ino), shown)
        # Stamps in the catalog: whether they are those of the file counts, and not when that was.
        for time_ns in {found[path].st_mtime_ns, found[path].st_ctime_ns}:
            names_of[f"{found[path].st_ino} {time_ns}"] = "as the file"
    lines = [_line(path, os.path.relpath(path, folder), found[path], names_of) for path in found]
    return _digest("\n".join(sorted(lines)).encode())


def _raise(error: OSError) -> None:
    raise error  # a directory that cannot be read is not an empty one


def _line(path: str, shown: str, status: os.stat_result, names_of: dict[str, str]) -> str:
    first = names_of[str(status.st_ino)]
    shown = shown.removesuffix(f".{status.st_ino}")
    line = f"{shown!r} {status.st_mode:o}"
    if stat.S_ISLNK(status.st_mode):
        return f"{line} -> {os.readlink(path)!r}"
    if not stat.S_ISREG(status.st_mode):
        return line
    line += f" {status.st_nlink} {first!r}"
    # When that was does not count, but whether a save would rely on the blob.
    line += f" stamped: {blob_time.is_stamp(status.st_mtime_ns)}" if is_digest(os.path.basename(path)) else ""
    return line if first != shown else f"{line} {_content(path, names_of)}"


def _named(names_of: dict[str, str], number: re.Match[str]) -> str:
    return names_of.get(number[0], number[0])


def _content(path: str, names_of: dict[str, str]) -> str:
    if path.endswith(_OF_CATALOG):  # read together with the catalog
        return "there"
    data = Path(path).read_bytes()
    if data.startswith(b"SQLite format 3"):
        return _digest("\n".join(_rows(path, names_of)).encode())
    if path.endswith("/events.jsonl"):
        return _digest(str([*map(_event, data.splitlines())]).encode())
    if path.endswith(".json"):
        return _digest(_INODE.sub(partial(_named, names_of), data.decode()).encode())
    return _digest(data)


def _event(line: bytes) -> object:
    """Return what a line of the journal says that is the same in each process; half a line is told as it is."""
    try:
        noted: dict[str, object] = json.loads(line)
    except ValueError:
        return line
    return sorted((key, str(value)) for key, value in noted.items() if key not in {"pid", "why", "seconds"})


def _rows(path: str, names_of: dict[str, str]) -> Iterator[str]:
    """Return all that a catalog holds; a copy of it is opened, as opening changes files."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        copy = os.path.join(folder, "catalog.db")
        for end in filter(lambda end: os.path.exists(path + end), ("", "-wal", "-journal")):
            shutil.copyfile(path + end, copy + end)
        with closing(sqlite3.connect(copy)) as catalog:
            row_checks.install(catalog)
            yield from (str(catalog.execute(f"PRAGMA {what}").fetchall()) for what in _PRAGMAS)
            for name, sql in catalog.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall():
                yield str(sql)
                if sql is not None and sql.startswith("CREATE TABLE"):
                    right = row_checks.IS_RIGHT if "checksum" in sql else "1"
                    rows = catalog.execute(f'SELECT {right} AS right, * FROM "{name}"')
                    columns = [column[0] for column in rows.description]
                    yield from sorted(_row(columns, row, names_of) for row in rows)


def _row(columns: Sequence[str], row: Sequence[object], names_of: dict[str, str]) -> str:
    cells = dict(zip(columns, row, strict=True))
    return str([_cell(column, cells, names_of) for column in cells])


def _cell(column: str, cells: dict[str, object], names_of: dict[str, str]) -> object:
    value = cells[column]
    if "inode" in column:
        return names_of.get(str(value), "gone")
    if column.endswith("time_ns"):
        return names_of.get(f"{cells['manifest_inode']} {value}", "of another file")
    # When a blob was read is asked of the kernel, not of the clock that stands still; a checksum is of such times, and
    # `right` says whether it is the one of its row.
    return bool(value) if column in {"read_ns", "checksum"} else value
