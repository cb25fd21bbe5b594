"""What must not be freed while other hosts may be at work, and what the user is told about it.

The locks, open files and catalogs of other hosts are not seen from here. So on a shared filesystem nothing is unlinked
that another host could have: not by opening, not by a failed save, not after a deletion. It stays in ``staging/`` and
``trash/`` until a user who knows that no other host uses the store runs gc and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import InUse
from ckstore.ops.index.reconcile import TIMEOUT_S, reconcile_all
from ckstore.ops.index.scan_blobs import list_blobs
from ckstore.ops.warn import warn

if TYPE_CHECKING:
    from ckstore.ops.context import Context

_UNFREED = "unfreed"
_HOW = "ckstore gc --exclusive, gc(exclusive=True) in Python"


def check_alone(context: Context, *, exclusive: bool) -> None:
    """Raise unless gc may free what no checkpoint needs: on a shared filesystem only if no other host is at work.

    Raises:
        InUse: Other hosts may be using the store, and the caller did not say that they are not.
    """
    if context.shared and not exclusive:
        msg = f"nothing was freed, since other hosts may be using the store: {context.shared}"
        raise InUse(msg, hint=f"when no other host uses this store: {_HOW}")


def tell_unfreed(context: Context) -> str:
    """Return, the first time for an open store, that bytes stay until a gc that is exclusive; later an empty string."""
    if not context.shared or _UNFREED in context.problems:
        return ""
    context.problems[_UNFREED] = (
        f"dropped checkpoints keep their bytes, since other hosts may be using the store: {context.shared}; "
        f"when no other host uses it, free them: {_HOW}"
    )
    return context.problems[_UNFREED]


def warn_unfreed(context: Context) -> None:
    """Warn, once for an open store, that bytes stay until a gc that is exclusive; not where they do not."""
    note = tell_unfreed(context)
    if note:
        warn(note)


def look_at_everything(context: Context) -> None:
    """Make the catalog of this host equal to all directories, whatever it believes of them, and list all blobs.

    Other hosts saved, dropped and collected meanwhile, and an inode number may belong to another directory by now.

    Raises:
        CatalogUnavailable, InUse: The catalog cannot be used.
    """
    keys = {(run, step) for run, step, _ in context.layout.published()} | context.catalog.listing().keys()
    reconcile_all(context, sorted(keys))
    list_blobs(context, timeout_s=TIMEOUT_S)
