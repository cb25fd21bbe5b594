"""Search the journal of events for the process that saved a checkpoint, so that a `StepExists` error can name it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ckstore.errors import CkstoreError, StepExists
from ckstore.fs.holders import command_of
from ckstore.model.reports.event import Event
from ckstore.model.times import time_of_text
from ckstore.model.words import printable
from ckstore.ops.context import Context
from ckstore.ops.events import events

# Process start times are rounded to a clock tick, and event times come from the wall clock, so they are not exact.
_TOLERANCE_S = 2.0
_SAVES = ("saved", "replaced")


def with_author(context: Context, error: StepExists, run: str) -> StepExists:
    """Return the error with the process that saved the checkpoint, or unchanged if that process is unknown."""
    event = _saved(context, error.id, run)
    if event is None:
        return error
    if not _is_running(event):
        return StepExists(f"{error.message} by PID {event.pid}, which has ended", hint=error.hint, id=error.id)
    if event.pid == context.own_pid:
        return StepExists(f"{error.message} by this process", hint=error.hint, id=error.id)
    who = printable(f"PID {event.pid} ({command_of(event.pid)})")
    hint = f"give each training its own run (run=) if both are to run; or {error.hint}"
    return StepExists(f"{error.message} by {who}, which is running", hint=hint, id=error.id)


def _saved(context: Context, id: str, run: str) -> Event | None:
    """Return the journal event of the save of a checkpoint, or None if it is unknown or other hosts use the store."""
    # A PID from another host would name the wrong process on this host.
    if not id or not context.view.sees_locks:
        return None
    try:
        found = [event for event in events(context, run=run) if event.event in _SAVES and event.id == id]
    except (CkstoreError, OSError):  # the caller is about to raise `StepExists`, which this error must not hide
        return None
    return found[-1] if found and found[-1].pid else None


def _is_running(event: Event) -> bool:
    """Whether the process of an event is still running, and its PID has not been reused by another process."""
    pid = event.pid
    try:
        # The start time is the twentieth field after the process name. Split at the last parenthesis, because the name
        # may contain spaces and parentheses.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        since_boot_s = int(text.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        started = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s)
        is_older = started <= time_of_text(event.time).timestamp() + _TOLERANCE_S
        return is_older and os.stat(f"/proc/{event.pid}").st_uid == event.uid
    except (OSError, ValueError, IndexError):  # the process has ended, or /proc is not mounted
        return False
