"""The column for the health of a checkpoint: the reason why it is unhealthy, and the parts that no longer change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def m0008_health(db: Database) -> None:
    """Add the column and delete the rows of checkpoints. The next opening adds the rows again from the manifests."""
    # The checksums of the rows do not cover the new column, so no row is valid any more.
    db.execute("DELETE FROM uses")
    db.execute("DELETE FROM checkpoints")
    db.execute("ALTER TABLE checkpoints ADD COLUMN health TEXT NOT NULL DEFAULT ''")
