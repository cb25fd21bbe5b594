"""Looks up keys on a remote, one by one or with a listing, and reads the server's clock."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime

from ckstore.ops.call_threads import for_each
from ckstore.remote import keys
from ckstore.remote.budget import MemoryBudget
from ckstore.remote.objects import THREADS, ObjectEntry, Objects

# The number of lookups that take about as long as one page of a listing, since they run concurrently.
PAGE_ASKS = THREADS
_PAGE_KEYS = 1000


def server_time(objects: Objects) -> datetime:
    """Return the current time according to the server's clock."""
    key = f"{keys.PROBE}{uuid.uuid4().hex}-clock"
    written = objects.put(key, b"1")
    objects.delete([key])
    return written.modified


def is_asked(count: int, there_count: int) -> bool:
    """Whether `count` keys are looked up one by one. The alternative is a listing of about `there_count` keys."""
    return count <= PAGE_ASKS * (1 + there_count // _PAGE_KEYS)


def look(objects: Objects, wanted: Collection[str], there_count: int) -> tuple[dict[str, ObjectEntry], int]:
    """Return the entries of the `wanted` keys that exist, and the number of keys in their folders.

    Args:
        objects: The objects of the remote.
        wanted: The keys to look up.
        there_count: The number of keys in their folders at the last listing. It is returned if no folder is listed.
    """
    if is_asked(len(wanted), there_count):
        return ask(objects, wanted), there_count
    found: dict[str, ObjectEntry] = {}
    count = 0
    for folder in sorted({f"{key.partition('/')[0]}/" for key in wanted}):
        for listed in objects.list(folder):
            count += 1
            if listed.key in wanted:
                found[listed.key] = listed
    return found, count


def ask(objects: Objects, names: Collection[str]) -> dict[str, ObjectEntry]:
    """Return the entries of the keys in `names` that exist. Each key is looked up with a separate request."""
    found: dict[str, ObjectEntry] = {}

    def look(key: str) -> None:
        listed = objects.head(key)
        if listed is not None:
            found[key] = listed

    for_each(look, names, threads=THREADS, stopping=MemoryBudget().ending(objects.close))
    return found
