"""Check that a catalog has exactly the schema that the steps make. A catalog with another schema is not read.

In a forged schema, reading a view in place of a table may never end. A trigger, a generated column or an index of an
expression would run code of the forger. So the text of the schema is compared before a statement uses a table.

If you add a step, ``python -m ckstore_migrations.schema`` prints the new value of `DIGESTS`.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

FIRST = 7
"""The version that the first step makes. Catalogs of earlier drafts are rebuilt from the directories."""

DIGESTS: tuple[str, ...] = (
    "5a47d5015cb84f8b2bdec3e7c47ec5c91af777a73a72c0da034a1792fd8b7102",
    "2982b4b3777c654eefc8ce5e65f1d5fe6610ca29ad1b2bb81fdbea1d99e57c37",
)
"""SHA-256 of the schema after each step."""


def is_schema_of(connection: sqlite3.Connection, version: int) -> bool:
    """Whether a database has the schema of the steps up to `version`, or is empty if `version` is 0."""
    wanted = {0: _digest(()), **{FIRST + i: digest for i, digest in enumerate(DIGESTS)}}
    return digest_of(connection) == wanted.get(version)


def digest_of(connection: sqlite3.Connection) -> str:
    """Return the digest of the schema of a database.

    It covers everything in `sqlite_schema` except the page numbers, which differ between files with the same schema.
    """
    return _digest(tuple(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()))


def digests() -> Iterator[str]:
    """Create the schema step by step, and yield its digest after each step."""
    from sqlite_utils import Database

    from ckstore_migrations import STEPS, apply

    for count in range(1, len(STEPS) + 1):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            # Plugins are disabled, because a user's environment must not change the schema.
            apply(Database(connection, execute_plugins=False), count)
            yield digest_of(connection)


@lru_cache(maxsize=4)  # catalogs have the same schema, and hashing takes a fifth of the time of opening a catalog
def _digest(rows: tuple[tuple[Any, ...], ...]) -> str:
    digest: str = _sha256()(repr(sorted(rows, key=repr)).encode("utf-8", "surrogatepass")).hexdigest()
    return digest


@cache
def _sha256() -> Callable[[bytes], Any]:
    # Like `random` of Python, this function avoids `hashlib`, which loads OpenSSL and takes 2 ms of a command. The
    # result is cached, because searching for a missing module takes a quarter of the time of opening the catalog.
    for lean in ("_sha2", "_sha256"):
        try:
            found: Callable[[bytes], Any] = import_module(lean).sha256
        except (ImportError, AttributeError):
            continue
        return found
    import hashlib

    return hashlib.sha256


if __name__ == "__main__":
    sys.stdout.writelines(f'    "{digest}",\n' for digest in digests())
