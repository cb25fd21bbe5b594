"""Retry a save that failed for a transient reason.

Each try is a new save with its own files. After a failed fsync, the kernel may mark pages as clean that never reached
the disk. Therefore the data of a failed try is never synced again: its staging directory is discarded before the pause
(docs/adr/0032-patience.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ckstore.errors import CkstoreError, InsufficientSpace, SaveFailed
from ckstore.fs import files
from ckstore.interpreter import log
from ckstore.model.settings.free_space import Amount
from ckstore.model.settings.patience import PASSING, AskedPatience, Failure, SavePatience, Tries
from ckstore.ops import events
from ckstore.ops.api_calls import why_of
from ckstore.ops.config_file import save_patience_of
from ckstore.ops.pace import process_end_s

if TYPE_CHECKING:
    from ckstore.ops.context import Context, SaveWatch

T = TypeVar("T")
_WARNING = 30  # of `logging`
_SHORT_S = 1.0


def failure_of(error: BaseException) -> Failure | None:
    """Return the kind of a transient failure of a save, or None if the failure is not transient."""
    # Compare the exact classes, to exclude two subclasses. After `UnknownOutcome`, the checkpoint may be published, and
    # `SaveAbandoned` is final.
    if type(error) is InsufficientSpace:
        return "space" if error.needed_bytes is None else "no room"
    cause = error.__cause__ if type(error) is SaveFailed else error
    if not isinstance(cause, OSError):
        return None
    if cause.errno in files.NO_SPACE:
        return "space"
    return "storage" if cause.errno in PASSING else None


class Patience:
    """Retries one save.

    Attributes:
        freed_by_end: Whether rolling back the failed try freed space, which the next try can use.
    """

    def __init__(
        self, context: Context, of: tuple[str, int | None], asked: AskedPatience, watch: SaveWatch | None = None
    ) -> None:
        self.freed_by_end = False
        self._context = context
        self._of = of  # run and step
        self._asked = asked
        self._watch = watch or context.watch
        self._tries = Tries(time.monotonic())
        self._first = ""
        self._is_told = False

    def run(self, attempt: Callable[[], T]) -> T:
        """Return the result of the first successful attempt; raise the error of the last attempt."""
        while True:
            try:
                return attempt()
            except (CkstoreError, OSError) as error:
                failure = failure_of(error)
                pause_s = None if failure is None else self._pause_s(failure)
                if failure is None or pause_s is None:
                    raise
                self._tell(error, failure, pause_s)
                fits = _fits_again(self._context, error)
            # Pause after the `except` block has ended. Until then, the error keeps the frames of the failed try and
            # their buffers in memory.
            self._watch.pause(pause_s, fits)

    @property
    def count(self) -> int:
        """The number of failed tries that were followed by another try."""
        return self._tries.count

    def notes(self) -> list[str]:
        """Return notes about failed tries."""
        if not self._tries.count:
            return []
        return [f"saving {_name(*self._of)} took {self._tries.count + 1} tries, since the first failed: {self._first}"]

    def _pause_s(self, failure: Failure) -> float | None:
        # The data of the failed try was freed, so the next try is likely to have room.
        if self.freed_by_end and failure == "space" and not self._tries.count:
            self._tries.count += 1
            return 0.0
        now_s = time.monotonic()
        end_s = min(process_end_s(), now_s + self._watch.patience_s())
        return self._tries.pause_s(failure, self._effective(), now_s, end_s)

    def _effective(self) -> SavePatience:
        # The settings are read only after a failure, so that a successful save does not read them.
        patience = self._asked.over(save_patience_of(self._context.layout))
        if process_end_s() == math.inf or patience.try_for_s is not None:
            return patience
        # The process will be killed soon, and no later save would have a better chance. Therefore retry until its end.
        return SavePatience(try_for_s=max(0.0, process_end_s() - self._tries.began_s))

    def _tell(self, error: CkstoreError | OSError, failure: Failure, pause_s: float) -> None:
        """Record a failed try in the journal, and log only the first one that is followed by a long wait."""
        self._context.totals.tried_again()
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        why = why_of(cause)
        events.note(self._context, "retried", self._of, why=f"{type(error).__name__}: {why}")
        self._first = self._first or why
        patience = self._effective()
        most_s = 0.0 if failure == "storage" else patience.try_for_s or patience.wait_for_space_s
        if self._is_told or (pause_s < _SHORT_S and not most_s):
            return
        self._is_told = True
        waits = f"waiting for space, {most_s:.0f} s at most" if most_s else "trying again"
        log(_WARNING, f"saving {_name(*self._of)}: {why}; {waits}")


def _fits_again(context: Context, error: BaseException) -> Callable[[], bool]:
    """Return a function that checks whether there is room for a save that was refused."""
    if not isinstance(error, InsufficientSpace) or error.needed_bytes is None:
        return lambda: False
    new = Amount(error.needed_bytes, error.needed_inodes or 0)
    return lambda: context.measure(new).fits


def _name(run: str, step: int | None) -> str:
    return f"{run}@{'next step' if step is None else step}"
