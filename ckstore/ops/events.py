"""The journal of a store: add and read events.

``events.jsonl`` has a line for each event. The journal is only informative. Its size is limited, and it may be lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from ckstore.errors import CkstoreError
from ckstore.fs import files
from ckstore.model.reports.event import Event, parse_line
from ckstore.model.times import start_of, text_of_time, time_of_text
from ckstore.objects.layout import Layout
from ckstore.ops.context import Context

_POLL_S = 0.5
EVENTS, OLDER = "events.jsonl", "events.jsonl.1"
# The maximum size of each of the two files. Together they have about 40,000 events, and are read in 0.25 s.
MOST_BYTES = 4 * 2**20
_READ_BYTES = 4 * MOST_BYTES  # a larger file, which another program has written, is not read


def note(
    context: Context,
    event: str,
    of: tuple[str, int | None] = ("", None),
    *,
    id: str = "",
    nbytes: int | None = None,
    why: str = "",
    seconds: float | None = None,
    metrics: tuple[str, ...] | None = None,
) -> None:
    """Add an event to the journal if possible, unless the store was opened for reading only."""
    if context.readonly:
        return
    now = text_of_time(datetime.now(UTC))
    run, step = of
    pid, uid = context.own_pid, os.geteuid()
    _append(context.layout, Event(now, event, run, step, id, nbytes, why, pid, uid, seconds, metrics))


def events(context: Context, *, since: object = None, run: str | None = None) -> list[Event]:
    """Return the events, the oldest first; see `ckstore.Store.events`."""
    start = start_of(since, datetime.now(UTC), "since")
    found = (event for event in _read(context.layout) if run in (None, event.run))
    return [event for event in found if start is None or time_of_text(event.time) >= start]


def following(context: Context, *, since: object = None, run: str | None = None) -> Iterator[Event]:
    """Yield past events, and then new ones, until the caller stops."""
    since = start_of(since, datetime.now(UTC), "since")
    last: Event | None = None
    while True:
        before = journal_stamp(context.layout)
        found = events(context, since=since, run=run)
        # Search for the last yielded event instead of counting, since the oldest events are removed when the log is
        # rotated. If the last yielded event was removed, all events are new.
        yield from found[next((i for i in range(len(found), 0, -1) if found[i - 1] == last), 0) :]
        last = found[-1] if found else last
        while journal_stamp(context.layout) == before:
            time.sleep(_POLL_S)


def _append(layout: Layout, event: Event) -> None:
    """Add an event, if possible.

    No error is raised, since a durable save must neither fail nor wait for a line that is only informative.
    """
    try:
        with files.opened_directory(layout.root) as fd:
            mode = files.mode_in(fd)
        root = layout.root
        files.append_line(root / EVENTS, event.line(), mode=mode, most_bytes=MOST_BYTES, older=root / OLDER)
    except (OSError, CkstoreError):
        return


def _read(layout: Layout) -> Iterator[Event]:
    """Yield the events, the oldest first; torn and unknown lines are skipped.

    Raises:
        CkstoreError: A file of the journal is not a regular file, or is huge.
    """
    for name in (OLDER, EVENTS):
        try:
            data = files.read_file(layout.root / name, most_bytes=_READ_BYTES)
        except FileNotFoundError:
            continue
        for line in data.split(b"\n"):
            if (event := parse_line(line)) is not None:
                yield event


def journal_stamp(layout: Layout) -> tuple[int, int]:
    """Return a stamp that changes when an event is added, for followers of the journal; zeros if it cannot be read."""
    try:
        with files.opened_regular(layout.root / EVENTS) as fd:
            found = os.fstat(fd)
    # The mirror process calls this function, and must continue even if the journal is not a regular file.
    except (OSError, CkstoreError):
        return 0, 0
    return found.st_ino, found.st_size
