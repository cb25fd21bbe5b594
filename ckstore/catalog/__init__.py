"""The index of a store in SQLite. If it is lost, it is rebuilt from the directories, and no checkpoint is lost.

`Catalog` and SQLite are imported when `Catalog` is first used. docs/adr/0002-catalog.md explains the design.

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
