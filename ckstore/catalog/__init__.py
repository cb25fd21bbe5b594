"""The index in SQLite. Losing it loses nothing: it is made from the directories (promise P5).

`Catalog` is imported on first use, and SQLite with it. Why it is so: docs/adr/0002-catalog.md.

Unless a docstring says otherwise, methods raise `CatalogUnavailable` when the file cannot be used, and `InUse` when its
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
