"""The schema of the catalog, as a list of steps that create and change it.

A released step is never edited. A change is a new step at the end of `STEPS`. Each step is a function of an open
`sqlite_utils.Database`. A step runs in the transaction of its caller, so it must not use `executescript`, which would
commit. The number in the name of a step is the value of `PRAGMA user_version` after the step.

This package does not import ckstore. It imports sqlite-utils only to apply steps, so that a reader that only needs
`VERSION` starts fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckstore_migrations.m0007_tables import m0007_tables
from ckstore_migrations.m0008_health import m0008_health
from ckstore_migrations.schema import FIRST

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

__all__ = ["APPLICATION_ID", "STEPS", "VERSION", "apply", "migrations"]

APPLICATION_ID = 0x636B7374
"""``ckst`` in ASCII; `PRAGMA application_id` of every catalog."""

STEPS: tuple[Callable[[Database], None], ...] = (m0007_tables, m0008_health)
VERSION = FIRST + len(STEPS) - 1

# The table and the index of sqlite-utils. This package creates them, so that the schema does not depend on the version
# of sqlite-utils.
_APPLIED = (
    """CREATE TABLE IF NOT EXISTS "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
)""",
    """CREATE UNIQUE INDEX IF NOT EXISTS "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name")""",
)


def apply(database: Database, count: int | None = None) -> None:
    """Apply the steps that a catalog lacks. With `count`, apply only those among the first `count` steps."""
    # sqlite-utils would create the same table and index, but its statements differ between versions, and the schema is
    # compared as text.
    for statement in _APPLIED:
        database.execute(statement)
    # sqlite-utils cannot stop after a number of steps, only before a step with a given name.
    later = [step.__name__ for step in STEPS[len(STEPS) if count is None else count :]]
    migrations().apply(database, stop_before=later)


def migrations() -> Migrations:
    """Return all steps as one sqlite-utils set, in order."""
    from sqlite_utils.migrations import Migrations

    steps = Migrations("ckstore")
    for step in STEPS:
        steps()(step)
    return steps
