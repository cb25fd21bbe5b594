"""Access the disk for a rank in a separate thread, so that the caller never waits past the deadline.

A system call on a hanging disk may never return, and cannot be interrupted. So the caller waits for the thread, and the
thread reports its progress. The caller gets the outcome of the save as soon as it is decided. It does not wait for
later steps (freeing staged data, the catalog, retention), which may take as long as the disk needs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from ckstore.errors import CkstoreError, RankFailed, UnknownOutcome
from ckstore.interpreter import end_overdue_pauses
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.progress import Progress
from ckstore.ops.context import SaveWatch
from ckstore.ops.pace import pause
from ckstore.ranks.rank_identity import RankIdentity

R = TypeVar("R")

GRACE_LEAST_S = 30.0
"""The minimum additional time of a rank that is publishing at the deadline. If `timeout_s` is longer, it is used."""
_QUIET_S = 10.0
"""The caller waits past the deadline until this time has passed without progress. A disk under heavy load takes seconds
for one fsync."""
_FOLLOWS_S = 5.0
"""The minimum time for the steps after a decision. It is as long as a save waits for the catalog."""
_STOPS_S = 5.0
_LOOK_S = 1.0


class RankWork:
    """The disk access of one rank during one save.

    Args:
        who: The rank.
        timeout_s: The maximum time to wait for the other ranks. If infinite, the rank waits forever, without a thread.
        grace_s: The additional time if the rank is publishing. If None, it is `timeout_s`, but at least
            `GRACE_LEAST_S`.
    """

    def __init__(self, who: RankIdentity, timeout_s: float, grace_s: float | None = None) -> None:
        self.who = who
        self.timeout_s = timeout_s
        self.grace_s = max(GRACE_LEAST_S, timeout_s) if grace_s is None else grace_s
        self._deadline_s = time.monotonic() + timeout_s
        self.progress: Progress | None = None  # called in the thread of the caller
        self._bytes: tuple[int, int] | None = None
        self._changed = threading.Condition()  # its lock is re-entrant
        self._doing = "began"
        self._moved_s = time.monotonic()
        self._offered = self._publishing = False
        self._stopped: BaseException | None = None
        self._decided: CheckpointInfo | CkstoreError | None = None
        self._decided_s = 0.0
        self._ended: Future[Any] | None = None

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._deadline_s

    def left_s(self) -> float:
        """Return the number of seconds until the deadline."""
        return self._deadline_s - time.monotonic()

    @property
    def is_late_for_others(self) -> bool:
        """Whether the deadline has passed even for a rank that is publishing."""
        return time.monotonic() >= self._deadline_s + self.grace_s

    # ------------------------------------------------------------------ for the thread

    def doing(self, act: str, *, offers: bool = False) -> None:
        """Record the next step. With `offers`, the other ranks may publish after this call."""
        with self._changed:
            # `_end_now` uses the same lock. Therefore either the caller gives up or this step is done, but never both.
            if self._stopped is not None:
                raise self._stopped
            self._doing = act
            self._offered |= offers
            self._moved_s = time.monotonic()

    def staged_bytes(self, done_bytes: int, all_bytes: int) -> None:
        """Record the number of staged bytes. This raises the same errors as `doing`."""
        self.doing("staged its part")
        with self._changed:
            self._bytes = done_bytes, all_bytes
            self._changed.notify()

    def publishing(self, step: int) -> None:
        """Record that publishing begins. This raises the same errors as `doing`.

        A caller that gives up after this call does not know the outcome.
        """
        del step
        with self._changed:
            self.doing("published")
            self._publishing = True

    def decided(self, how: CheckpointInfo | CkstoreError) -> None:
        """Record the outcome of the save for all ranks."""
        with self._changed:
            if self._decided is None:
                self._decided = how
                self._decided_s = self._moved_s = time.monotonic()

    # ------------------------------------------------------------------ for the caller

    def run(self, work: Callable[[], R], unwanted: Callable[[R], object] = lambda _: None) -> R:
        """Run `work` in the thread. Return its result or the recorded outcome, or raise the error.

        If the caller has given up, `unwanted` is called with a result that arrives later. `RankFailed` means that
        nothing was published. `UnknownOutcome` means that a rank may have published.
        """
        if self.timeout_s == math.inf:
            return work()
        name = f"ckstore rank {self.who.rank}"
        thread = threading.Thread(target=self._work, args=(work, unwanted), daemon=True, name=name)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started, for example at the exit of Python: work without a deadline
            return work()
        result: R
        try:
            result = self._wait()
        except BaseException as error:
            with self._changed:  # a signal handler or `progress` raised the error
                if self._ended is None and self._stopped is None:
                    self._stopped = error
                    self._changed.wait_for(lambda: self._ended is not None, _STOPS_S)
            raise
        return result

    def _work(self, work: Callable[[], R], unwanted: Callable[[R], object]) -> None:
        ended: Future[R] = Future()
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            ended.set_exception(error)
        with self._changed:
            self._ended = ended
            is_unwanted = self._stopped is not None
            self._changed.notify()
        if is_unwanted and ended.exception() is None:
            unwanted(ended.result())

    def _wait(self) -> Any:
        while True:
            with self._changed:
                left_s = self._limit_s() - time.monotonic()
                if self._ended is None and self._bytes is None and left_s > 0:
                    end_overdue_pauses(_LOOK_S)
                    self._changed.wait(min(left_s, _LOOK_S))
                ended, done = self._ended, self._bytes
                self._bytes = None
                if ended is None and self._limit_s() <= time.monotonic():
                    return self._end_now()
            if done is not None and self.progress is not None:
                self.progress(*done)
            if ended is not None:
                return ended.result()

    def _limit_s(self) -> float:
        """Return the time until which the caller waits. It increases while the thread makes progress."""
        if self._decided is not None:  # later steps cannot change the outcome, so the caller need not wait for them
            return max(self._deadline_s, self._decided_s + _FOLLOWS_S)
        grace_s = self.grace_s if self._publishing else 0.0
        return max(self._deadline_s + grace_s, self._moved_s + _QUIET_S)

    def _end_now(self) -> CheckpointInfo:
        """Return or raise the outcome as far as it is known, without waiting for the thread any longer."""
        if isinstance(self._decided, CkstoreError):
            raise self._decided
        if self._decided is not None:
            slow = f"the work after the save has not ended, since the disk of {self.who} is slow"
            warning = f"{self._decided.name} is saved, but {slow}"
            return replace(self._decided, catalogued=False, warnings=(*self._decided.warnings, warning))
        quiet_s = time.monotonic() - self._moved_s
        since = f"{self.who} {self._doing} {quiet_s:.0f} s ago, and the disk of the store has not responded since then"
        name = self.who.name
        if self._offered or self._publishing:
            msg = f"it is unknown whether {name} was published: {since}"
            self._stopped = UnknownOutcome(msg, hint="check the disk; ckstore log shows whether the checkpoint exists")
        else:
            msg = f"{name} was not published: {since}"
            self._stopped = RankFailed(msg, hint="check the disk, then save again")
        raise self._stopped


class WorkWatch(SaveWatch):
    """Reports the progress of publishing to a `RankWork`.

    Args:
        work: The work of the rank.
        committed: Called when the checkpoint is durable.
        failed: Called when a try to publish has failed, before the next try.
    """

    def __init__(
        self,
        work: RankWork,
        committed: Callable[[CheckpointInfo], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        self._work = work
        self._failed = failed
        self._committed = committed or work.decided

    def syncing(self) -> None:
        """Record that the manifest is written."""
        self._work.doing("wrote the manifest")

    def publishing(self, step: int) -> None:
        """Record that publishing begins. This raises an error if the caller has given up."""
        self._work.publishing(step)

    def committed(self, info: CheckpointInfo) -> None:
        """Report that the checkpoint is committed, before the following steps, which may take long."""
        self._committed(info)

    def patience_s(self) -> float:
        """Return how long the other ranks still wait for this rank."""
        return self._work.left_s()

    def pause(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Pause, as long as the caller has not given up."""

        def said_and_over() -> bool:
            self._work.doing("paused before another try")
            return is_over()

        if self._failed is not None:
            self._failed()
        pause(seconds, said_and_over)
