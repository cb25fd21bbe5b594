"""The visible status of a saver."""

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
        pid: Process id of the saver.
        trainer: Id of the process that started the saver, which may have ended.
        store: Directory of its store.
        state: One of starting, idle, staging, hashing, writing, syncing, committing, just committed and closing. The
            state of a process for a mirror is mirroring, waiting (until its next attempt) or idle. The state of a
            process for compaction is compacting.
        run, step: Run and step of the current or last save. A step of None means the next step.
        done_bytes, total_bytes: Number of bytes of this save that are done, and total number of bytes of this save.
        since: When the saver last reported its status, in seconds since 1970.
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
        """The current or last save, ``RUN@STEP`` or ``RUN@next``, or an empty string without a save."""
        return printable(f"{self.run}@{'next' if self.step is None else self.step}") if self.run else ""

    @property
    def done(self) -> str:
        """Progress of this save, such as ``1.0 GiB of 4.0 GiB``, or an empty string without a save."""
        return f"{size_text(self.done_bytes)} of {size_text(self.total_bytes)}" if self.run else ""

    def __str__(self) -> str:
        save = f", {self.save}, {self.done}" if self.run else ""
        return printable(f"saver {self.pid} of process {self.trainer}: {self.state}{save}")


@brief()
@dataclass(frozen=True, slots=True)
class SaveEvent:
    """A state that a background save reached.

    Attributes:
        name: The state, as in `SaverStatus.state`, or ``staged``, ``durable`` or ``failed``.
        time: Time in seconds since 1970.
        done_bytes: Number of bytes done at that time.
    """

    name: str
    time: float
    done_bytes: int

    def __str__(self) -> str:
        when = time_text(datetime.fromtimestamp(self.time, UTC).isoformat())
        return printable(f"{self.name} at {when}, {size_text(self.done_bytes)} done")
