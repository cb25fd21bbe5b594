"""What must not be freed while other hosts may be at work, and what the user is told about it.

The locks, open files and catalogs of other hosts are not seen from here. So on a shared filesystem nothing is unlinked
at once that another host could have: not by opening, not by a failed save, not after a deletion. It stays in
``staging/`` and ``trash/`` for a grace (`ckstore.objects.shared.grace`), or until a user who knows that no other host
uses the store runs gc and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.ops.notices import warn

if TYPE_CHECKING:
    from ckstore.ops.context import Context

_UNFREED = "unfreed"
_HOW = "ckstore gc --exclusive, gc(exclusive=True) in Python"


def tell_unfreed(context: Context) -> str:
    """Return, the first time for an open store, that bytes stay for the grace; later an empty string."""
    if not context.shared or _UNFREED in context.notices.problems:
        return ""
    context.notices.problems[_UNFREED] = (
        f"dropped checkpoints keep their bytes for a while (config.grace_s), since other hosts may be using the store: "
        f"{context.shared}; a later gc frees them, and at once, when no other host uses the store: {_HOW}"
    )
    return context.notices.problems[_UNFREED]


def warn_unfreed(context: Context) -> None:
    """Warn, once for an open store, that bytes stay for the grace; not where they do not."""
    note = tell_unfreed(context)
    if note:
        warn(note)
