"""``events.jsonl``: what happened in a store, a line each. It is bounded, decides nothing, and may be lost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError
from ckstore.fs import files
from ckstore.model.reports.event import Event, parse_line
from ckstore.objects.documents.atomic_file import mode_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckstore.objects.layout import Layout

EVENTS, OLDER = "events.jsonl", "events.jsonl.1"
# With the older one at most some 40,000 events, which are read in a quarter of a second.
MOST_BYTES = 4 * 2**20
_READ_BYTES = 4 * MOST_BYTES  # one that another program made larger is not read into memory


def append(layout: Layout, event: Event) -> None:
    """Add an event, as far as that works.

    A save that is durable must not fail, nor wait, for a line that decides nothing: so no error is raised.
    """
    try:
        with files.opened_directory(layout.root) as fd:
            mode = mode_in(fd)
        root = layout.root
        files.append_line(root / EVENTS, event.line(), mode=mode, most_bytes=MOST_BYTES, older=root / OLDER)
    except (OSError, CkstoreError):
        return


def read(layout: Layout) -> Iterator[Event]:
    """Yield the events, the oldest first; lines that are torn or not understood are passed over.

    Raises:
        CkstoreError: A file of them is not a regular one, or huge.
    """
    for name in (OLDER, EVENTS):
        try:
            data = files.read_file(layout.root / name, most_bytes=_READ_BYTES)
        except FileNotFoundError:
            continue
        for line in data.split(b"\n"):
            if (event := parse_line(line)) is not None:
                yield event


def stamp(layout: Layout) -> tuple[int, int]:
    """Return what changes when an event was added: to follow them without reading all."""
    try:
        with files.opened_regular(layout.root / EVENTS) as fd:
            found = os.fstat(fd)
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_size
