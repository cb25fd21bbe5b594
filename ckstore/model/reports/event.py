"""Events: what happened in a store, as a line of its journal and as people read it. Source: docs/format/v1.md."""

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
    "purged",
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
)
RENAMED = "renamed to"
"""How the reason of a `dropped` begins if the checkpoint is in another run now."""
LINE_MOST_BYTES = 4096
# A character outside the basic plane takes twelve bytes; the rest of a line is short.
_WHY_CHARS = 280


@brief("time", "event", "run", "step", "why")
@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        time: When, as in a manifest.
        event: ``saved``, ``replaced``, ``failed``, ``retried`` (a try failed, and another followed), ``unknown``
            (`UnknownOutcome`), ``dropped``, ``restored``, ``purged``, ``freed``, ``damaged``, ``healed``,
            ``mirrored``, ``missing`` (at the mirror), ``evicted``, ``pruned``, ``renamed``, ``compacted``,
            ``uncompacted`` (it was to be, and failed).
        run, step, id: Of which checkpoint; empty, None and empty where it is of none.
        nbytes: Bytes that a save added, that were freed or sent, or by which a compaction made files smaller.
        seconds: How long a save took.
        metrics: The names of the metrics that a dropped checkpoint had; None if that is not known.
        why: By which rule, the reason of a failure, or which remote.
        pid, uid: Of the process that did it; of a save in the background, of the training process.
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
        """The full ref, ``RUN@STEP``, or the run, as far as it is of one."""
        return self.run if self.step is None else f"{self.run}@{self.step}"

    def line(self) -> bytes:
        """Return it as a line of the journal, of at most `LINE_MOST_BYTES`."""
        members = {one.name: getattr(self, one.name) for one in fields(self)}
        members["why"] = self.why[:_WHY_CHARS]
        line = canonical_json({name: value for name, value in members.items() if value not in ("", None)}) + b"\n"
        # Without the names of hundreds of metrics: then it is not known which there were.
        return line if self.metrics is None or len(line) <= LINE_MOST_BYTES else replace(self, metrics=None).line()

    def to_json(self) -> dict[str, Any]:
        """Return its members as JSON; what it does not say is null."""
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
    """Return the event in a line of the journal; None if it is torn, or of a kind that this ckstore does not know."""
    if not line or len(line) > LINE_MOST_BYTES:
        return None
    try:
        members = json.loads(line)
        if not isinstance(members, dict) or members.get("event") not in KINDS:
            return None
        time = check_created(members.get("time"), "an event")
    except (ValueError, RecursionError, BadInput):
        return None
    found = {name: members[name] for name, kind in _TYPES.items() if _fits(members.get(name), kind)}
    metrics = members.get("metrics")
    if isinstance(metrics, list) and all(type(name) is str for name in metrics):
        found["metrics"] = tuple(metrics)
    return Event(time, members["event"], **found)


def _fits(value: object, kind: type) -> bool:
    # NaN and infinity, which Python reads, are no JSON.
    return type(value) is kind and abs(value if isinstance(value, int | float) else 0) <= SAFE_INT
