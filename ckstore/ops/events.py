"""What happened in a store: notes it, and gives what was noted.

``events.jsonl`` has a line for each. It is bounded, decides nothing, and may be lost.
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
# With the older one at most some 40,000 events, which are read in a quarter of a second.
MOST_BYTES = 4 * 2**20
_READ_BYTES = 4 * MOST_BYTES  # one that another program made larger is not read into memory


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
    """Add an event to the journal, as far as that works; the store is writable by now."""
    if context.readonly:
        return
    now = text_of_time(datetime.now(UTC))
    run, step = of
    pid, uid = context.own_pid, os.geteuid()
    _append(context.layout, Event(now, event, run, step, id, nbytes, why, pid, uid, seconds, metrics))


def events(context: Context, *, since: object = None, run: str | None = None) -> list[Event]:
    """Return what happened, the oldest first; see `ckstore.Store.events`."""
    start = start_of(since, datetime.now(UTC), "since")
    found = (event for event in _read(context.layout) if run in (None, event.run))
    return [event for event in found if start is None or time_of_text(event.time) >= start]


def following(context: Context, *, since: object = None, run: str | None = None) -> Iterator[Event]:
    """Yield what happened, and then what happens, until the caller stops."""
    since = start_of(since, datetime.now(UTC), "since")
    last: Event | None = None
    while True:
        before = journal_stamp(context.layout)
        found = events(context, since=since, run=run)
        # Not by number: when the log turns over, the oldest go. Where the last one given is gone, all are new.
        yield from found[next((i for i in range(len(found), 0, -1) if found[i - 1] == last), 0) :]
        last = found[-1] if found else last
        while journal_stamp(context.layout) == before:
            time.sleep(_POLL_S)


def _append(layout: Layout, event: Event) -> None:
    """Add an event, as far as that works.

    A save that is durable must not fail, nor wait, for a line that decides nothing: so no error is raised.
    """
    try:
        with files.opened_directory(layout.root) as fd:
            mode = files.mode_in(fd)
        root = layout.root
        files.append_line(root / EVENTS, event.line(), mode=mode, most_bytes=MOST_BYTES, older=root / OLDER)
    except (OSError, CkstoreError):
        return


def _read(layout: Layout) -> Iterator[Event]:
    """Yield the events, the oldest first; lines that are torn or not understood are passed over."""
    # Raises CkstoreError: a file of them is not a regular one, or huge.
    for name in (OLDER, EVENTS):
        try:
            data = files.read_file(layout.root / name, most_bytes=_READ_BYTES)
        except FileNotFoundError:
            continue
        for line in data.split(b"\n"):
            if (event := parse_line(line)) is not None:
                yield event


def journal_stamp(layout: Layout) -> tuple[int, int]:
    """Return what changes when an event is added: to follow them without reading all; nothing if it cannot be read."""
    try:
        with files.opened_regular(layout.root / EVENTS) as fd:
            found = os.fstat(fd)
    # What lies in its place decides nothing either: the process that mirrors asks for this, and must go on.
    except (OSError, CkstoreError):
        return 0, 0
    return found.st_ino, found.st_size
