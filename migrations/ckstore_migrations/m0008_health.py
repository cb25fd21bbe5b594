"""What a save found in the tensors of a checkpoint: why it is unhealthy, and which parts no longer change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def m0008_health(db: Database) -> None:
    """Add the column, and forget the checkpoints: the next opening adds them as their manifests say."""
    # Their checksums are without the column, so no row counts any more.
    db.execute("DELETE FROM uses")
    db.execute("DELETE FROM checkpoints")
    db.execute("ALTER TABLE checkpoints ADD COLUMN health TEXT NOT NULL DEFAULT ''")
