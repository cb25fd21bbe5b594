"""The index in SQLite. Losing it loses no checkpoint, since it is rebuilt from the directories (promise P5).

`Catalog` is imported on first use, and SQLite with it. docs/adr/0002-catalog.md gives the reasons.

Unless a docstring says otherwise, methods raise `CatalogUnavailable` if the file cannot be used, and `InUse` if its
lock is not free in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckstore.catalog.catalog import Catalog

__all__ = ["Catalog"]


def __getattr__(name: str) -> object:
    if name == "Catalog":
        from ckstore.catalog.catalog import Catalog

        return Catalog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
