"""The one error of the catalog that callers have to expect; it does not need SQLite."""

from __future__ import annotations

from typing import Literal

from ckstore.errors import CkstoreError

Why = Literal["missing", "behind", "newer", "damaged", "unreadable"]


class CatalogUnavailable(CkstoreError):
    """The catalog cannot be used now. It is an index: leave it aside and use the directories.

    Attributes:
        why: ``missing`` and ``behind`` are mended by `Catalog.create_or_migrate`, ``damaged`` by
            `Catalog.set_aside` before that. ``newer``: written by a newer ckstore.
            ``unreadable``: the filesystem or the permissions refuse it, or the disk is full.
    """

    def __init__(self, message: str, *, why: Why, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.why: Why = why
