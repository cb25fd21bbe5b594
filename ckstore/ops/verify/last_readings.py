"""When the blobs of a checkpoint were last read, by a save that reused them or by a verification."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.times import text_of_time
from ckstore.ops.context import Context

# If the record is lost, the blob is read again sooner; a verification does not wait long for it.
_TIMEOUT_S = 5.0


def with_oldest_reading(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` with the time of the oldest reading of its blobs, if the catalog has one for each blob."""
    try:
        _, unread, oldest_ns = context.catalog.oldest_reading(info.key, now_ns=time.time_ns())
    except CatalogUnavailable:  # calls that need the catalog report it
        return info
    if unread or oldest_ns is None:
        return info
    return replace(info, oldest_reading=text_of_time(datetime.fromtimestamp(oldest_ns / 1e9, UTC)))


def record_readings(context: Context, digests: Iterable[str], read_ns: int) -> None:
    """Record that blobs were read completely and are right. A failure only makes saves read them again sooner."""
    try:
        context.catalog.record_readings(dict.fromkeys(digests, (read_ns, 0)), timeout_s=_TIMEOUT_S)
    except CkstoreError:  # saves read them sooner than necessary
        return
