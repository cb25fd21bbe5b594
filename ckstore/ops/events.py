"""What happened in a store: notes it, and gives what was noted. It decides nothing."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError
from ckstore.model.reports.event import Event
from ckstore.model.times import start_of, text_of_time, time_of_text
from ckstore.objects.documents import journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckstore.model.names import CheckpointKey
    from ckstore.ops.context import Context

_POLL_S = 0.5


def note(
    context: Context,
    event: str,
    key: tuple[str, int | None] | CheckpointKey = ("", None),
    *,
    id: str = "",
    nbytes: int | None = None,
    why: str = "",
    seconds: float | None = None,
) -> None:
    """Add an event to the journal, as far as that works; the store is writable by now."""
    if context.readonly:
        return
    now = text_of_time(datetime.now(UTC))
    run, step = key
    journal.append(context.layout, Event(now, event, run, step, id, nbytes, why, os.getpid(), os.geteuid(), seconds))


@contextmanager
def noting_failure(context: Context, key: tuple[str, int | None]) -> Iterator[None]:
    """Note that an act failed, and why."""
    try:
        yield
    except CkstoreError as error:
        note(context, "failed", key, why=f"{type(error).__name__}: {error.message}")
        raise


def events(context: Context, *, since: object = None, run: str | None = None) -> list[Event]:
    """Return what happened, the oldest first; see `ckstore.Store.events`."""
    start = start_of(since, datetime.now(UTC), "since")
    found = (event for event in journal.read(context.layout) if run in (None, event.run))
    return [event for event in found if start is None or time_of_text(event.time) >= start]


def following(context: Context, *, since: object = None, run: str | None = None) -> Iterator[Event]:
    """Yield what happened, and then what happens, until the caller stops."""
    since = start_of(since, datetime.now(UTC), "since")
    given = 0
    while True:
        stamp = journal.stamp(context.layout)
        found = events(context, since=since, run=run)
        # By number: lines are only added. After a turn over there may be fewer, and all of them count as new ones do.
        yield from found[given if given <= len(found) else 0 :]
        given = len(found)
        while journal.stamp(context.layout) == stamp:
            time.sleep(_POLL_S)
