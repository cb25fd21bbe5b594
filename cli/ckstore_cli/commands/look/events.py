"""``ckstore events``: what happened in a store."""

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
    **dict.fromkeys(("dropped", "purged", "retried"), "yellow"),
    "saved": "green",
}
_SUMMED_FROM = 20  # fewer are counted at a glance


@click.command()
@click.option("--since", metavar="TIME", help="Only the last 90m, 36h, 7d …. Default: all that are there.")
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Only this run.")
@click.option("--follow", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@framed
def events(frame: Frame, since: str | None, run: str | None, follow: bool) -> None:  # noqa: FBT001 - click's
    """Say what happened in the store, the oldest first: saves, drops, damage.

    Each line has the time (UTC), what happened, to which checkpoint, how many
    bytes it added or freed, and why: the rule that dropped it, or the reason of
    a failure. What another user did also has that user's id. The log is
    bounded, holds the last 20,000 events or more, and may lack one; ckstore log lists what there is.

    \b
    Example:
      ckstore events --since 1d
      ckstore events --run sweep-7 --follow
      ckstore events --json | jq -r 'select(.event == "failed") | .why'

    \b
    Exit status:
      0  done, also when nothing happened
      2  wrong usage
      4  there is no such store or run
    """
    out = frame.output()
    start = start_of(since, datetime.now(UTC), "--since")
    with frame.reading() as store:
        if follow:
            from ckstore.ops.events import following

            for event in following(store._context, since=start, run=run):  # noqa: SLF001 - no name of it is public yet
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
        out.note("nothing happened" if since is None else "nothing happened in that time")


def _print(out: Output, event: Event) -> None:
    out.document(event)
    text = str(event)
    if event.uid != os.geteuid():  # in a store of a group, or what root did
        text += f"  by uid {event.uid}"
    look = _LOOKS.get(event.event)
    out.line(text if look is None else text.replace(printable(event.event), out.style(event.event, look), 1))
