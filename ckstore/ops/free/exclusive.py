"""What must not be freed while other hosts may be at work, and what the user is told about it.

The locks, open files and catalogs of other hosts are not seen from here. So on a shared filesystem nothing is unlinked
at once that another host could have: not by opening, not by a failed save, not after a deletion. It stays in
``staging/`` and ``trash/`` for a grace (`ckstore.objects.shared.grace`), or until a user who knows that no other host
uses the store runs gc and says so.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ckstore.objects import reserve
from ckstore.objects.shared import grace
from ckstore.ops.config import grace_of
from ckstore.ops.index.reconcile import TIMEOUT_S, reconcile_all
from ckstore.ops.index.scan_blobs import list_blobs
from ckstore.ops.warn import warn

if TYPE_CHECKING:
    from ckstore.objects.shared.grace import Grace
    from ckstore.ops.context import Context

_UNFREED = "unfreed"
_HOW = "ckstore gc --exclusive, gc(exclusive=True) in Python"


def grace_for(context: Context, *, exclusive: bool) -> Grace | None:
    """Return what may go while other hosts may be at work; None: nothing waits, since there are none.

    Raises:
        CkstoreError, OSError: The setting cannot be read, or the filesystem cannot be asked for the time.
    """
    if not context.shared or exclusive:
        return None
    seconds = grace_of(context)
    try:
        return grace.begin(context.layout, seconds)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    with reserve.given_up(context.layout):
        return grace.begin(context.layout, seconds)


def tell_unfreed(context: Context) -> str:
    """Return, the first time for an open store, that bytes stay for the grace; later an empty string."""
    if not context.shared or _UNFREED in context.problems:
        return ""
    context.problems[_UNFREED] = (
        f"dropped checkpoints keep their bytes for a while (config.grace_s), since other hosts may be using the store: "
        f"{context.shared}; a later gc frees them, and at once, when no other host uses the store: {_HOW}"
    )
    return context.problems[_UNFREED]


def warn_unfreed(context: Context) -> None:
    """Warn, once for an open store, that bytes stay for the grace; not where they do not."""
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
