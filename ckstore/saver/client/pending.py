"""The object with which a caller watches, awaits or cancels a background save."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ckstore.errors import CkstoreError, InUse, UnknownOutcome
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.not_saved import NotSaved
from ckstore.model.saver.status import SaveEvent
from ckstore.model.wait_limit import wait_limit_s


class PendingSave:
    """A save that continues in the background; see `ckstore.Store.save_async`.

    Its methods may be called from any thread. Methods that do not wait may also be called in a signal handler.

    Attributes:
        run: The run of the save.
        step: The step that the caller gave or the saver chose. None until it is known.
        skipped: Whether nothing was saved because another save was pending (``when_busy="skip"``).
        total_bytes: The size of the state.
    """

    def __init__(self, run: str, step: int | None, total_bytes: int, *, skipped: bool = False) -> None:
        self.run = run
        self.step = step
        self.total_bytes = total_bytes
        self.skipped = skipped
        self._pid = os.getpid()  # a forked child gets no messages about the save
        self._done_bytes = 0
        self._state = "skipped" if skipped else "queued"
        self._events: list[SaveEvent] = []
        # The lock is re-entrant, because a signal handler may call `cancel` while this thread holds it.
        self._changed = threading.Condition()
        self._staged = skipped
        self._info: CheckpointInfo | None = None
        self._error: CkstoreError | None = None
        self._unread = False
        self._cancelled = self._granted = False
        self.refuse: Callable[[], object] | None = None  # informs the saver that the save was cancelled
        # Returns the value that replaces an error, or None if the error must be raised. If the attribute is None, all
        # errors are raised.
        self.tolerate: Callable[[CkstoreError, str, int | None], NotSaved | None] | None = None
        self._not_saved: NotSaved | None = None
        if skipped:
            self._error = InUse(
                f"the save of {self.name} was skipped, because max_in_flight saves had not ended",
                hint="when_busy='wait' waits for one of them",
            )

    @property
    def name(self) -> str:
        """The full ref, ``RUN@STEP``, as far as it is known."""
        return f"{self.run}@{'next step' if self.step is None else self.step}"

    @property
    def state(self) -> str:
        """The state of the save.

        A save begins in the state ``queued``. The next states are ``staging``, ``hashing``, ``writing``, ``syncing``,
        ``committing`` and ``just committed`` (durable; tags, the catalog and retention follow). The final state is
        ``done``, ``failed`` or ``skipped``. The state ``waiting`` means that a try has failed, and that the saver
        pauses before the next try.
        """
        return self._state

    @property
    def progress(self) -> tuple[int, int]:
        """The number of processed bytes, and the total number of bytes."""
        return self._done_bytes, self.total_bytes

    @property
    def events(self) -> tuple[SaveEvent, ...]:
        """The past events with their times, in order: ``copied``, ``staged``, the states, ``durable``."""
        return tuple(self._events)

    def done(self) -> bool:
        """Whether the save has ended, with or without success."""
        return self._error is not None or self._state == "done"

    def wait_staged(self, timeout_s: float | None = None) -> bool:
        """Wait until the saver has the snapshot. Afterwards, the save completes even if this process ends.

        Returns:
            Whether the saver received the snapshot within `timeout_s`. Without `timeout_s`, the call waits as long as
                the saver makes progress.

        Raises:
            SaveFailed: The save has failed. `result` raises the cause.
            UnknownOutcome: This process was forked while the save was unfinished.
        """
        self.check_process()
        with self._changed:
            # The wait also ends with the save, because a save that fails early is never staged.
            self._changed.wait_for(lambda: self._staged or self.done(), wait_limit_s(timeout_s))
            if self._error is not None and not self.skipped:
                self._unread = False
                raise self._error
            return self._staged

    def result(self, timeout_s: float | None = None) -> CheckpointInfo:
        """Wait for the end, and return the durable checkpoint.

        Args:
            timeout_s: The maximum wait. If None, the call waits as long as the saver makes progress (see
                `stall_timeout_s` of `save_async`).

        Raises:
            TimeoutError: The save has not ended in time.
            SaveAbandoned: The saver was stuck, or the save was cancelled. The checkpoint will not be published.
            UnknownOutcome: The saver became stuck while it published, or this process was forked while the save was
                unfinished.
            NotUnchanged: A tensor that was named in ``unchanged=`` has changed.
            CkstoreError: An error that `Store.save` also raises.
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
            TimeoutError: The save has not ended after `timeout_s`.
            CkstoreError: The error that `result` raises, if the failure is not tolerated.
        """
        self.exception(timeout_s)
        return self.result() if self._not_saved is None else self._not_saved

    def exception(self, timeout_s: float | None = None) -> CkstoreError | None:
        """Wait for the end, and return the error that `result` would raise, or None if the save has succeeded.

        Raises:
            TimeoutError: The save has not ended in time.
            UnknownOutcome: This process was forked while the save was unfinished.
        """
        self.check_process()
        with self._changed:
            if not self._changed.wait_for(self.done, wait_limit_s(timeout_s)):
                raise TimeoutError(f"the save of {self.name} has not ended after {timeout_s} s; it is {self._state}")
            # The caller has now read the error, so the next save must not raise it again.
            self._unread = False
            return self._error

    def cancel(self) -> bool:
        """Cancel the save, unless its publishing has begun. `result` then raises `SaveAbandoned`.

        Returns:
            False if it is too late to cancel.

        Raises:
            UnknownOutcome: This process was forked while the save was unfinished.
        """
        self.check_process()
        with self._changed:
            # Once the save is allowed to publish, the saver may be making the rename. A cancelled save that still
            # appears would be worse than a save that cannot be cancelled.
            if self.done() or self._granted:
                return False
            self._cancelled = True
            refuse = self.refuse
        # The saver is informed immediately, because this process may end before the saver asks for permission. In that
        # case, a saver that knows of no cancellation would publish.
        if refuse is not None:
            refuse()
        return True

    # ---- for the client

    def check_process(self) -> None:
        """Raise an error in a forked child if the save was unfinished at the fork. This takes no lock."""
        if os.getpid() != self._pid and not self.done():
            msg = f"process {self._pid} began the save of {self.name} and then forked this process, {os.getpid()}"
            raise UnknownOutcome(
                f"{msg}, which does not get the outcome of the save", hint=f"wait for the save in process {self._pid}"
            )

    @property
    def is_cancelled(self) -> bool:
        """Whether the save was cancelled before its publishing began."""
        return self._cancelled

    def note(self, name: str, done_bytes: int | None = None) -> None:
        """Record a state or an event of the save."""
        with self._changed:
            if done_bytes is not None:
                self._done_bytes = done_bytes
            if name == "staged":
                self._staged = True
            elif name not in ("copied", "durable"):
                # The saver also reports its progress within a state, which is not an event.
                if self._state == name:
                    return
                self._state = name
            self._events.append(SaveEvent(name, time.time(), self._done_bytes))
            self._changed.notify_all()

    def grant(self, step: int) -> bool:
        """Return whether the save may be published at this step. If so, it can no longer be cancelled."""
        with self._changed:
            # `cancel` and `grant` use the same lock, so exactly one of them succeeds.
            if self._cancelled:
                return False
            self.step = step
            self._granted = True
            self.note("committing")
            return True

    def revoke(self) -> None:
        """Allow cancelling until the next request to publish, because the permitted try has definitely failed."""
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
        """Return the error if the caller has not read it, and mark it as read."""
        with self._changed:
            unread, self._unread = self._unread, False
            return self._error if unread else None

    def __repr__(self) -> str:
        return f"<PendingSave of {self.name}: {self._state}>"
