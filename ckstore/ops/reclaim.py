"""Give back what a failed or replaced save took, and what dead ones left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.catalog import CatalogUnavailable
from ckstore.errors import CkstoreError
from ckstore.fs import files, locks
from ckstore.objects import trash

if TYPE_CHECKING:
    from pathlib import Path

    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context

_CATALOG_TIMEOUT_S = 2.0


def discard(context: Context, staging: Staging) -> None:
    """Move a save that will not be published to trash and free what only it needed, as far as that works now.

    What does not work stays in `staging/` or `trash/`, where the next opener or gc finds it: an error here must not
    hide the one that made the save fail.
    """
    try:
        moved = trash.move_to_trash(context.layout, staging.path, staging.lock)
    except OSError:
        staging.lock.release()
        return
    staging.lock.release()
    empty(context)
    if not moved.exists():
        free_unused(context, list(staging.written))


def discard_path(context: Context, path: Path) -> None:
    """Move a directory in ``staging/`` that nobody uses to trash and empty it; a used one stays for the next opener."""
    try:
        lock = locks.try_exclusive(path)
        if lock is None:
            return
        with lock:
            trash.move_to_trash(context.layout, path, lock)
        files.sync_directory(context.layout.staging)
    except OSError:  # the next opener sweeps it
        return
    empty(context)


def empty(context: Context) -> None:
    """Empty the trash if nobody else is at it and the catalog can take note of what to look at later."""
    try:
        trash.empty_trash(
            context.layout, lambda found: context.catalog.add_candidates(found, timeout_s=_CATALOG_TIMEOUT_S)
        )
    except (CkstoreError, OSError):  # it stays in trash, where gc finds it
        return


def free_unused(context: Context, digests: list[str]) -> None:
    """Free those of the blobs that nobody names and nobody has open."""
    try:
        _, gone = trash.condemn(context.layout, digests, lambda digest: bool(context.catalog.users_of(digest)))
        if gone:
            context.catalog.forget(gone, timeout_s=_CATALOG_TIMEOUT_S)
    except (CatalogUnavailable, CkstoreError, OSError):  # rows and blobs are found again by gc
        return
