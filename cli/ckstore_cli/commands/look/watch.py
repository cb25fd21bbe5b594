"""``ckstore watch``: the current state of each run, updated continuously."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ckstore.errors import CkstoreError
from ckstore.model.sizes import size_text
from ckstore.model.words import metrics_text, printable
from ckstore_cli._format import age_text, columns, cut
from ckstore_cli._frame import Frame, framed
from ckstore_cli._types import Number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.saver.status import SaverStatus
    from ckstore.store import Store
    from ckstore_cli._output import Output

_HEAD = ("RUN", "STEP", "AGE", "SAVED", "SIZE", "ADDED", "SAVER", "MIRROR", "HEALTH", "METRICS")
_ALIGN = "<>>>>><<<<"
_EVERY_S = 2.0
_LEAST_S = 0.1  # shorter intervals only load the disk


class _Row(NamedTuple):
    """The current state of a run."""

    newest: CheckpointInfo
    saved_count: int
    added_bytes: int  # total bytes written by its saves
    damaged: int  # number of checkpoints marked as damaged
    saver: str  # state of the process that saves to the run in the background, or empty if there is none
    behind: tuple[CheckpointInfo, ...] | None  # checkpoints that the mirror lacks, newest first; None without a mirror

    @property
    def health(self) -> str:
        return f"{self.damaged} damaged" if self.damaged else "ok"

    def mirror(self, now: datetime) -> str:
        if not self.behind:
            return "" if self.behind is None else "has all"
        return f"lacks {len(self.behind)}, {age_text(self.behind[-1].created, now)}"

    def cells(self, now: datetime) -> tuple[str, ...]:
        one = self.newest
        return (
            *(one.run, str(one.step), age_text(one.created, now), str(self.saved_count), size_text(one.logical_bytes)),
            *(size_text(self.added_bytes), self.saver or "-", self.mirror(now) or "-", self.health),
            metrics_text(one.metrics),
        )

    def document(self) -> dict[str, Any]:
        one = self.newest
        return {
            "run": one.run,
            "step": one.step,
            "id": one.id,
            "created": one.created,
            "metrics": one.metrics,
            "checkpoint_count": self.saved_count,
            "logical_bytes": one.logical_bytes,
            "added_bytes": self.added_bytes,
            "damaged_count": self.damaged,
            "saver": self.saver,
            "behind_count": None if self.behind is None else len(self.behind),
        }


@click.command()
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option(
    "--every", type=Number(min=_LEAST_S), default=_EVERY_S, metavar="SECONDS", help="Time between updates. Default: 2."
)
@framed
def watch(frame: Frame, once: bool, every: float) -> None:  # noqa: FBT001 - click's
    """Show the current state of each run until Ctrl-C.

    SAVED is the number of checkpoints of the run, SIZE the size of the newest one,
    and ADDED the total bytes that its saves wrote. SAVER is the state of a
    background save. MIRROR is the number of checkpoints that are not on the mirror
    yet, and the age of the oldest of them. On a terminal, the table is updated every
    two seconds (see --every), which requires ckstore[watch]. Otherwise, a line is
    printed whenever a run changes.

    \b
    Example:
      ckstore watch
      ckstore watch --once
      ckstore watch --json | jq -r 'select(.damaged_count > 0) | .run'

    \b
    Exit status:
      0  done, or ended by Ctrl-C
      2  wrong usage
      4  no such store
    """
    out = frame.output()
    with frame.reading() as store:
        try:
            if once:
                rows = _rows(store)
                out.documents(row.document() for row in rows)
                if rows:
                    out.table([cut(line, out.width) for line in columns([_HEAD, *_cells(rows)], _ALIGN)])
                else:
                    out.note("no checkpoint yet")
            elif out.width is not None and (console := _console()) is not None:
                _live(console, store, every)
            else:
                _lines(out, store, every)
        except KeyboardInterrupt:  # the normal end
            return


def _rows(store: Store) -> list[_Row]:
    """Return the state of each run, the most recently saved first."""
    by_run: dict[str, list[CheckpointInfo]] = {}
    for info in store.checkpoints():
        by_run.setdefault(info.run, []).append(info)
    try:
        savers = store.savers()
    except CkstoreError:  # the processes of this host cannot be listed; a warning every two seconds would not help
        savers = ()
    mirror = store.mirror_status()
    rows = [
        _Row(
            newest=infos[-1],
            saved_count=len(infos),
            added_bytes=sum(info.new_bytes for info in infos),
            damaged=sum(info.damaged for info in infos),
            saver=_saver(savers, run),
            behind=None if mirror is None else tuple(info for info in mirror.behind if info.run == run),
        )
        for run, infos in by_run.items()
    ]
    return sorted(rows, key=lambda row: row.newest.order, reverse=True)


def _saver(savers: Sequence[SaverStatus], run: str) -> str:
    found = [one for one in savers if one.run == run]
    if not found:
        return ""
    one = max(found, key=lambda one: one.since)
    share = f" {100 * one.done_bytes // one.total_bytes} %" if 0 < one.done_bytes < one.total_bytes else ""
    return f"{one.state}{share}"


def _cells(rows: Sequence[_Row]) -> list[tuple[str, ...]]:
    now = datetime.now(UTC)
    return [tuple(map(printable, row.cells(now))) for row in rows]


def _lines(out: Output, store: Store, every_s: float) -> None:
    """Print a line for a run whenever anything but the age of its newest checkpoint changes."""
    known: dict[str, dict[str, Any]] = {}
    while True:
        for row in _rows(store):
            document = row.document()
            if known.get(row.newest.run) == document:
                continue
            known[row.newest.run] = document
            out.document(document)
            now = datetime.now(UTC)
            mirror = f"mirror {row.mirror(now)}" if row.behind else ""
            health = "" if row.health == "ok" else row.health
            details = (size_text(row.newest.logical_bytes), metrics_text(row.newest.metrics), row.saver, mirror, health)
            out.line(printable("  ".join((f"{now:%F %T}", row.newest.name, *filter(None, details)))))
        sys.stdout.flush()
        time.sleep(every_s)


def _console() -> Any:
    """Return a console of rich for the terminal, or None if rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _live(console: Any, store: Store, every_s: float) -> None:
    """Draw the table repeatedly, in the same place. The terminal is restored at the end."""
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def drawn() -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, side in zip(_HEAD, _ALIGN, strict=True):
            table.add_column(name, justify="left" if side == "<" else "right", no_wrap=True)
        for cells in _cells(_rows(store)):
            # Use `Text`, which is not parsed as markup, since the name of a run or a metric may have brackets.
            table.add_row(
                *(Text(cell, style="red" if "damaged" in cell and i == _HEALTH else "") for i, cell in enumerate(cells))
            )
        return table

    with Live(drawn(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(drawn(), refresh=True)


_HEALTH = _HEAD.index("HEALTH")
