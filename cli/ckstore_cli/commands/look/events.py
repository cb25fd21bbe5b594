"""``ckstore events``: the events of a store."""

from __future__ import annotations

import os
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ckstore.model.times import start_of
from ckstore.model.words import printable
from ckstore_cli._frame import Frame, framed
from ckstore_cli._refs import complete_run, no_such_run, runs

if TYPE_CHECKING:
    from ckstore.model.reports.event import Event
    from ckstore_cli._output import Output

_LOOKS = {
    **dict.fromkeys(("failed", "unknown", "uncompacted", "damaged"), "red"),
    **dict.fromkeys(("dropped", "retried", "untracked"), "yellow"),
    "saved": "green",
}
_SUMMED_FROM = 20  # fewer events are easy to count


@click.command()
@click.option("--since", metavar="TIME", help="Only events within this time, such as 90m, 36h or 7d. Default: all.")
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Only events of this run.")
@click.option("--follow", is_flag=True, help="Continue with new events until Ctrl-C.")
@framed
def events(frame: Frame, since: str | None, run: str | None, follow: bool) -> None:  # noqa: FBT001 - click's
    """List events such as saves, drops, damage and repairs, the oldest first.

    Each line has the time (UTC), the event, the checkpoint, the bytes added or
    freed, and the rule that dropped the checkpoint or the reason of a failure. An
    event of another user also has the id of that user. The journal usually holds
    the last 20,000 events or more, and may lack some of them. ckstore log lists the
    existing checkpoints.

    \b
    Example:
      ckstore events --since 1d
      ckstore events --run sweep-7 --follow
      ckstore events --json | jq -r 'select(.event == "failed") | .why'

    \b
    Exit status:
      0  done, even without events
      2  wrong usage
      4  no such store or run
    """
    out = frame.output()
    start = start_of(since, datetime.now(UTC), "--since")
    with frame.reading() as store:
        if follow:
            from ckstore.ops.events import following

            for event in following(store._context, since=start, run=run):  # noqa: SLF001 - it has no public name yet
                _print(out, event)
                sys.stdout.flush()
        found = store.events(start, run)
        if run is not None and not found and run not in runs(store.path):
            raise no_such_run(store.path, run)
    for event in found:
        _print(out, event)
    if len(found) > _SUMMED_FROM:
        counts = Counter(event.event for event in found)
        out.note(f"in all: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    if not found:
        out.note("no events" if since is None else "no events in that time")


def _print(out: Output, event: Event) -> None:
    out.document(event)
    text = str(event)
    if event.uid != os.geteuid():  # in a store of a group, or an event of root
        text += f"  by uid {event.uid}"
    look = _LOOKS.get(event.event)
    out.line(text if look is None else text.replace(printable(event.event), out.style(event.event, look), 1))
