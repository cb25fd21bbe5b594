"""Events of a store, as lines of its journal and as text for users. Source: docs/format/v1.md."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.brief import brief
from ckstore.model.canonical import SAFE_INT, canonical_json
from ckstore.model.document import check_created
from ckstore.model.sizes import size_text
from ckstore.model.times import seconds_text
from ckstore.model.words import printable

KINDS = (
    "saved",
    "replaced",
    "failed",
    "retried",
    "unknown",
    "dropped",
    "restored",
    "freed",
    "damaged",
    "healed",
    "mirrored",
    "missing",
    "evicted",
    "pruned",
    "renamed",
    "compacted",
    "uncompacted",
    "untracked",
)
RENAMED = "renamed to"
"""The start of the reason of a `dropped` event if the checkpoint was moved to another run."""
LINE_MOST_BYTES = 4096
# In the JSON text, a character outside the basic plane takes twelve bytes. The other members of a line are short.
_WHY_CHARS = 280


@brief("time", "event", "run", "step", "why")
@dataclass(frozen=True, slots=True)
class Event:
    """An event in the journal of a store.

    Attributes:
        time: Time of the event, in the format of a manifest.
        event: ``saved``, ``replaced``, ``failed``, ``retried`` (an attempt failed, and another followed), ``unknown``
            (`UnknownOutcome`), ``dropped``, ``restored``, ``freed``, ``damaged``, ``healed``,
            ``mirrored``, ``missing`` (on the mirror), ``evicted``, ``pruned``, ``renamed``, ``compacted``,
            ``uncompacted`` (a planned compaction failed), ``untracked`` (a tracker did not receive the checkpoint).
        run, step, id: Run, step and id of the checkpoint. An event that concerns no checkpoint has an empty id and the
            step None. If the event concerns no run either, the run is also empty.
        nbytes: Number of bytes that a save added, that were freed or sent, or that a compaction saved.
        seconds: Duration of a save.
        metrics: The names of the metrics of a dropped checkpoint. None if they are unknown.
        why: The rule, the reason of a failure, or the remote.
        pid, uid: Process id and user id of the process that caused the event. For a background save, this is the
            training process.
    """

    time: str
    event: str
    run: str = ""
    step: int | None = None
    id: str = ""
    nbytes: int | None = None
    why: str = ""
    pid: int = 0
    uid: int = 0
    seconds: float | None = None
    metrics: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """The full ref ``RUN@STEP``, or only the run if there is no step, or an empty string if there is no run."""
        return self.run if self.step is None else f"{self.run}@{self.step}"

    def line(self) -> bytes:
        """Return the event as a line of the journal, of at most `LINE_MOST_BYTES`."""
        members = {one.name: getattr(self, one.name) for one in fields(self)}
        members["why"] = self.why[:_WHY_CHARS]
        line = canonical_json({name: value for name, value in members.items() if value not in ("", None)}) + b"\n"
        # Omit the names of the metrics if the line is too long, so that they are unknown to readers.
        return line if self.metrics is None or len(line) <= LINE_MOST_BYTES else replace(self, metrics=None).line()

    def to_json(self) -> dict[str, Any]:
        """Return the members of the event as JSON, with null for empty members."""
        members = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: None if value == "" else value for name, value in members.items()}

    def __str__(self) -> str:
        size = "" if self.nbytes is None else size_text(self.nbytes)
        took = "" if self.seconds is None else seconds_text(self.seconds)
        words = [self.time[:19].replace("T", " "), self.event, self.name, size, took, self.why]
        return printable("  ".join(word for word in words if word))


_TYPES: dict[str, type] = {
    **dict.fromkeys(("run", "id", "why"), str),
    **dict.fromkeys(("step", "nbytes", "pid", "uid"), int),
    "seconds": float,
}


def parse_line(line: bytes) -> Event | None:
    """Return the event in a line of the journal, or None if the line is torn or the kind of the event is unknown."""
    if not line or len(line) > LINE_MOST_BYTES:
        return None
    try:
        members = json.loads(line)
        if not isinstance(members, dict) or members.get("event") not in KINDS:
            return None
        time = check_created(members.get("time"), "an event")
    except (ValueError, RecursionError, BadInput):
        return None
    found: dict[str, Any] = {}
    for name, kind in _TYPES.items():
        value = members.get(name)
        # Python reads NaN and infinity, which are not valid JSON.
        if type(value) is kind and abs(value if isinstance(value, int | float) else 0) <= SAFE_INT:
            found[name] = value
    metrics = members.get("metrics")
    if isinstance(metrics, list) and all(type(name) is str for name in metrics):
        found["metrics"] = tuple(metrics)
    return Event(time, members["event"], **found)
