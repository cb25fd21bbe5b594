"""What one sees of a saver from outside."""

from __future__ import annotations

from dataclasses import dataclass

STATUS_NAME = "ckstore-saver-status"
STATUS_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class SaverStatus:
    """A saver process.

    Attributes:
        pid: Its process.
        trainer: The process that it was started by; that may have ended.
        store: Directory of its store.
        state: starting, idle, staging, hashing, writing, syncing, committing, just committed or closing.
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
