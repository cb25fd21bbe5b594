"""Change a real catalog in a way that is drawn: bits, pages, pointers between them, rows, the schema, its log."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

PAGE_BYTES = 4096
_INTERIOR = {2: 12, 5: 12}
"""Kinds of pages that point to others -> bytes of their header. Source: sqlite.org/fileformat2.html section 1.6."""
_VALUES: tuple[object, ...] = (
    *("../../../outside/thesis.txt", "/etc/passwd", "", "main", "{", "[" * 3000, '{"loss": -1e308}', "x" * 100_000),
    *(-1, 0, 1, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 0.5, b"\xff\x00", None),
)
_EVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
_SCHEMAS = (
    "CREATE TRIGGER t AFTER DELETE ON uses BEGIN DELETE FROM blobs; END",
    "CREATE TABLE more (a, b AS (hex(zeroblob(1000000))))",
    "CREATE INDEX more ON blobs (hex(nbytes))",
    f"CREATE VIEW more AS {_EVER}",
    "DROP INDEX uses_by_blob",
    "DROP VIEW run_summary",
    "ANALYZE",
    "VACUUM",
)


def fill(path: Path, checkpoints: int = 400) -> None:
    """Add so many rows that tables and indexes have pages that point to others."""
    with closing(sqlite3.connect(path)) as connection:
        blobs = [(f"xxh3-{i:032x}", i) for i in range(3000)]
        connection.executemany("INSERT INTO blobs (digest, nbytes) VALUES (?, ?)", blobs)
        connection.execute("INSERT OR IGNORE INTO candidates SELECT id FROM blobs WHERE digest LIKE 'xxh3-00000%'")
        connection.execute("INSERT OR IGNORE INTO readings SELECT id, 1, 0 FROM blobs")
        names = [row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")]
        listed = ", ".join(name for name in names if name not in ("id", "step", "directory"))
        query = (
            f"INSERT INTO checkpoints (step, directory, {listed}) "
            f"SELECT :step, :step || substr(directory, instr(directory, '.')), {listed} FROM checkpoints"
            " ORDER BY id LIMIT 1"
        )
        connection.executemany(query, [{"step": step} for step in range(1000, 1000 + checkpoints)])
        connection.commit()


def spoil_catalog(path: Path, draw: random.Random) -> str:
    """Change the catalog at `path`; return how."""
    how = draw.choice(_CHANGES)
    for _ in range(draw.choice((1, 1, 3, 20))):
        if path.stat().st_size < 2 * PAGE_BYTES:  # an earlier change emptied it
            break
        how(path, draw)
    return how.__name__


def _bits(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _header(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(16, 100)] = draw.randrange(256)
    path.write_bytes(data)


def _pages(path: Path, draw: random.Random) -> None:
    """Put a page in the place of another, or nothing."""
    data = bytearray(path.read_bytes())
    count = len(data) // PAGE_BYTES
    into, of = draw.randrange(1, count) * PAGE_BYTES, draw.randrange(1, count) * PAGE_BYTES
    data[into : into + PAGE_BYTES] = draw.choice((bytes(PAGE_BYTES), data[of : of + PAGE_BYTES]))
    path.write_bytes(data)


def _pointers(path: Path, draw: random.Random) -> None:
    """Have a page point to itself, or to any other, in all its cells: a ring, or many to one."""
    data = bytearray(path.read_bytes())
    count = len(data) // PAGE_BYTES
    interior = [page for page in range(1, count) if data[page * PAGE_BYTES] in _INTERIOR]
    if not interior:
        return
    page = draw.choice(interior)
    start = page * PAGE_BYTES
    target = draw.choice((page + 1, draw.choice(interior) + 1, draw.randrange(1, count + 1))).to_bytes(4, "big")
    cells = int.from_bytes(data[start + 3 : start + 5], "big")
    data[start + 8 : start + 12] = target
    for cell in range(min(cells, 500)):
        at = int.from_bytes(data[start + 12 + 2 * cell : start + 14 + 2 * cell], "big")
        if 12 <= at <= PAGE_BYTES - 4:
            data[start + at : start + at + 4] = target
    path.write_bytes(data)


def _length(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(2 * path.stat().st_size))


def _rows(path: Path, draw: random.Random) -> None:
    """Put a value of any type into a column, and leave the schema as it was."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA foreign_keys=OFF")
            connection.execute("PRAGMA writable_schema=ON")
            found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
            table, sql = draw.choice([row for row in found if not row[0].startswith(("_", "sqlite_"))])
            column = draw.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()])
            loose = sql.replace(" INTEGER NOT NULL", " ANY").replace(" TEXT NOT NULL", " ANY")
            change = "UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = ?"
            connection.execute(change, (loose, table))
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                some = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE abs(random()) % 3 = 0"
                other.execute(some, (draw.choice(_VALUES),))
            connection.execute(change, (sql, table))
        except sqlite3.Error:  # an earlier change of this kind made it no database for SQLite any more
            return


def _schema(path: Path, draw: random.Random) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            connection.execute(draw.choice(_SCHEMAS))
        except sqlite3.Error:  # it was made before
            return


def _beside(path: Path, draw: random.Random) -> None:
    """Put bytes beside it that are nonsense, or begin as they should."""
    suffix = draw.choice(("-wal", "-shm", "-journal"))
    start = draw.choice((b"", bytes.fromhex("d9d505f920a163d7"), bytes.fromhex("377f0682002de218")))
    path.with_name(f"{path.name}{suffix}").write_bytes(start + draw.randbytes(draw.choice((0, 100, 40_000))))


_CHANGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(_bits,) * 2,
    _header,
    _pages,
    *(_pointers,) * 3,
    _length,
    *(_rows,) * 3,
    _schema,
    _beside,
)
