"""A background save, as its caller uses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ckstore.errors import CkstoreError, InUse
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.not_saved import NotSaved
from ckstore.model.saver.status import SaveEvent


class PendingSave:
    """A save that continues in the background; see `ckstore.Store.save_async`.

    Its methods may be called from any thread, also in a signal handler, except for those that wait.

    Attributes:
        run: The run of the save.
        step: The step of the caller, or the one that the saver chose. None until it is known.
        skipped: Whether nothing was saved because another save was pending (``when_busy="skip"``).
        total_bytes: Size of the state.
    """

    def __init__(self, run: str, step: int | None, total_bytes: int, *, skipped: bool = False) -> None:
        self.run = run
        self.step = step
        self.total_bytes = total_bytes
        self.skipped = skipped
        self._done_bytes = 0
        self._state = "skipped" if skipped else "queued"
        self._events: list[SaveEvent] = []
        # Its own lock, a re-entrant one: `cancel` may come from a signal handler while this thread holds it.
        self._changed = threading.Condition()
        self._staged = skipped
        self._info: CheckpointInfo | None = None
        self._error: CkstoreError | None = None
        self._unread = False
        self._cancelled = self._granted = False
        self.refuse: Callable[[], object] | None = None  # tells the saver that it was given up
        # Returns what stands for an error, None if that is to be raised; None: each is.
        self.tolerate: Callable[[CkstoreError, str, int | None], NotSaved | None] | None = None
        self._not_saved: NotSaved | None = None
        if skipped:
            self._error = InUse(
                f"the save of {self.name} was skipped, since max_in_flight other saves were unfinished",
                hint="when_busy='wait' waits for one of them",
            )

    @property
    def name(self) -> str:
        """The full ref, ``RUN@STEP``, as far as it is known."""
        return f"{self.run}@{'next step' if self.step is None else self.step}"

    @property
    def state(self) -> str:
        """The state of the save.

        First ``queued``, then ``staging``, ``hashing``, ``writing``, ``syncing``, ``committing`` and ``just committed``
        (durable; tags, the catalog and retention follow), and finally ``done``, ``failed`` or ``skipped``. In the state
        ``waiting`` a try has failed, and the saver pauses before the next one.
        """
        return self._state

    @property
    def progress(self) -> tuple[int, int]:
        """The number of processed bytes, and the total."""
        return self._done_bytes, self.total_bytes

    @property
    def events(self) -> tuple[SaveEvent, ...]:
        """The past events with their times, in order: ``copied``, ``staged``, the states, ``durable``."""
        return tuple(self._events)

    def done(self) -> bool:
        """Whether it has ended, with or without success."""
        return self._error is not None or self._state == "done"

    def wait_staged(self, timeout_s: float | None = None) -> bool:
        """Wait until the saver has the snapshot. From then on the save completes even if this process ends.

        Returns:
            False if the saver does not have it after `timeout_s`. Without `timeout_s`, this waits as long as the saver
                makes progress.

        Raises:
            SaveFailed: The save has failed. `result` raises the cause.
        """
        with self._changed:
            # Or ended: a save that failed before it was staged must not be waited for without end.
            self._changed.wait_for(lambda: self._staged or self.done(), timeout_s)
            if self._error is not None and not self.skipped:
                self._unread = False
                raise self._error
            return self._staged

    def result(self, timeout_s: float | None = None) -> CheckpointInfo:
        """Wait for the end, and return the durable checkpoint.

        Args:
            timeout_s: The maximum wait. If None, as long as the saver makes progress (see `stall_timeout_s` of
                `save_async`).

        Raises:
            TimeoutError: It has not ended in time.
            SaveAbandoned: The saver was stuck, or the save was cancelled. It was not published, and will not be.
            UnknownOutcome: The saver became stuck while it published.
            NotUnchanged: A tensor that was named in ``unchanged=`` has changed.
            CkstoreError: As `Store.save` raises it.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        if self._info is None:
            raise AssertionError(self._state)
        return self._info

    def ended(self, timeout_s: float | None = None) -> CheckpointInfo | NotSaved:
        """Wait like `result`, but return `NotSaved` for a failure that ``on_failure="warn"`` tolerates.

        Raises:
            TimeoutError: It has not ended after `timeout_s`.
            CkstoreError: As `result`, if the failure is not tolerated.
        """
        self.exception(timeout_s)
        return self.result() if self._not_saved is None else self._not_saved

    def exception(self, timeout_s: float | None = None) -> CkstoreError | None:
        """Wait for the end, and return the error that `result` would raise, or None if it was saved.

        Raises:
            TimeoutError: It has not ended in time.
        """
        with self._changed:
            if not self._changed.wait_for(self.done, timeout_s):
                raise TimeoutError(f"the save of {self.name} has not ended after {timeout_s} s; it is {self._state}")
            # Read by the caller: the next save must not raise it once more.
            self._unread = False
            return self._error

    def cancel(self) -> bool:
        """Cancel the save, unless its publishing has begun. `result` then raises `SaveAbandoned`.

        Returns:
            False if it is too late to cancel.
        """
        with self._changed:
            # After the yes the saver may be in the rename: a cancelled save that appears anyway is worse than none
            # cancelled.
            if self.done() or self._granted:
                return False
            self._cancelled = True
            refuse = self.refuse
        # Not only when the saver asks: this process may have ended by then, and its end counts as a yes.
        if refuse is not None:
            refuse()
        return True

    # ---- for the client: what becomes of it

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled before its publishing began."""
        return self._cancelled

    def note(self, name: str, done_bytes: int | None = None) -> None:
        """Record a state or an event of the save."""
        with self._changed:
            if done_bytes is not None:
                self._done_bytes = done_bytes
            if name == "staged":
                self._staged = True
            elif name not in ("copied", "durable"):
                # A second saver comes to the same states again; each counts once.
                if self._state == name:
                    return
                self._state = name
            self._events.append(SaveEvent(name, time.time(), self._done_bytes))
            self._changed.notify_all()

    def grant(self, step: int) -> bool:
        """Whether it may be published at this step. It cannot be cancelled afterwards."""
        with self._changed:
            # Cancel and grant under one lock: exactly one of them wins.
            if self._cancelled:
                return False
            self.step = step
            self._granted = True
            self.note("committing")
            return True

    def revoke(self) -> None:
        """Allow cancelling again, until the next request to publish, since the permitted try has failed for good."""
        with self._changed:
            self._granted = False

    def finish(self, outcome: CheckpointInfo | CkstoreError) -> None:
        """Record the end of the save with its result or error."""
        with self._changed:
            if self.done():
                return
            self.refuse = None
            if isinstance(outcome, CkstoreError):
                self._error = outcome
                self._not_saved = self.tolerate and self.tolerate(outcome, self.run, self.step)
                self._unread = self._not_saved is None
                self.note("failed")
            else:
                self._info = outcome
                self.step = outcome.step
                self._staged = True
                self.note("done", self.total_bytes)

    def take_unread(self) -> CkstoreError | None:
        """Return an error that was not read, once."""
        with self._changed:
            unread, self._unread = self._unread, False
            return self._error if unread else None

    def __repr__(self) -> str:
        return f"<PendingSave of {self.name}: {self._state}>"
