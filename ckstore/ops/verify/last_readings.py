"""When the blobs that a checkpoint relies on were last read: by a save that relied on them, or by a verification."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.times import text_of_time
from ckstore.objects.documents.remote_only import holder_names_at
from ckstore.ops.context import Context

# Losing the note means that it is read sooner; a verification does not wait long for it.
_TIMEOUT_S = 5.0


def with_oldest_reading(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` with the time of the oldest reading of its blobs, where the catalog knows one of each."""
    try:
        _, unread, oldest_ns = context.catalog.oldest_reading(info.key, now_ns=time.time_ns())
    except CatalogUnavailable:  # the acts that need the catalog say so
        return info
    if unread or oldest_ns is None:
        return info
    return replace(info, oldest_reading=text_of_time(datetime.fromtimestamp(oldest_ns / 1e9, UTC)))


def with_remotes(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` with the names of the remotes that have what is elsewhere."""
    return replace(info, remotes=holder_names_at(context.layout.checkpoint(info.key))) if info.elsewhere else info


def record_readings(context: Context, digests: Iterable[str], read_ns: int) -> None:
    """Take note that blobs were read whole and were right; that it does not work delays nothing but their next turn."""
    try:
        context.catalog.record_readings(dict.fromkeys(digests, (read_ns, 0)), timeout_s=_TIMEOUT_S)
    except CkstoreError:  # saves read them sooner than they would have to
        return
