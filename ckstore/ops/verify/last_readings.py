"""The times at which blobs were last read, by a save that reused them or by a verification."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.times import text_of_time
from ckstore.ops.context import Context

# The timeout is short, because a lost record only makes saves read the blobs again sooner than necessary.
_TIMEOUT_S = 5.0


def with_oldest_reading(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` with the time of the oldest reading of its blobs, if the catalog has a reading of each blob."""
    try:
        _, unread, oldest_ns = context.catalog.oldest_reading(info.key, now_ns=time.time_ns())
    except CatalogUnavailable:  # calls that need the catalog report the error
        return info
    if unread or oldest_ns is None:
        return info
    return replace(info, oldest_reading=text_of_time(datetime.fromtimestamp(oldest_ns / 1e9, UTC)))


def record_readings(context: Context, digests: Iterable[str], read_ns: int) -> None:
    """Record that blobs were read completely and are intact.

    No `CkstoreError` is raised, since a failure only makes saves read the blobs again sooner than necessary.
    """
    try:
        context.catalog.record_readings(dict.fromkeys(digests, (read_ns, 0)), timeout_s=_TIMEOUT_S)
    except CkstoreError:
        return
