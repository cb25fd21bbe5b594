"""What one sees of a saver from outside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import printable, time_text

STATUS_NAME = "ckstore-saver-status"
STATUS_BYTES = 32 * 1024


@brief()
@dataclass(frozen=True, slots=True)
class SaverStatus:
    """A saver process.

    Attributes:
        pid: Its process.
        trainer: The process that it was started by; that may have ended.
        store: Directory of its store.
        state: starting, idle, staging, hashing, writing, syncing, committing, just committed or closing; that of the
            process that mirrors is mirroring, waiting (until it tries again) or idle, of one that compacts compacting.
        run, step: Of the save that it is at, or was at last; a step of None: the next one.
        done_bytes, total_bytes: How much of that it has dealt with.
        since: When it last said so, in seconds since 1970.
    """

    pid: int
    trainer: int
    store: str
    state: str
    run: str
    step: int | None
    done_bytes: int
    total_bytes: int
    since: float

    @property
    def save(self) -> str:
        """The save that it is at, ``RUN@STEP`` or ``RUN@next``; empty for none."""
        return printable(f"{self.run}@{'next' if self.step is None else self.step}") if self.run else ""

    @property
    def done(self) -> str:
        """How much of that is done, ``1.0 GiB of 4.0 GiB``; empty without a save."""
        return f"{size_text(self.done_bytes)} of {size_text(self.total_bytes)}" if self.run else ""

    def __str__(self) -> str:
        save = f", {self.save}, {self.done}" if self.run else ""
        return printable(f"saver {self.pid} of process {self.trainer}: {self.state}{save}")


@brief()
@dataclass(frozen=True, slots=True)
class SaveEvent:
    """A background save came to a state; `name` as in `SaverStatus.state`, ``staged``, ``durable``, ``failed``.

    Attributes:
        name: What it came to.
        time: In seconds since 1970.
        done_bytes: How much was dealt with by then.
    """

    name: str
    time: float
    done_bytes: int

    def __str__(self) -> str:
        when = time_text(datetime.fromtimestamp(self.time, UTC).isoformat())
        return printable(f"{self.name} at {when}, {size_text(self.done_bytes)} done")
