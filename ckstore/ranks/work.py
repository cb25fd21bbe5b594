"""What a rank does at the disk, in a thread of its own: its caller waits no longer than the deadline whatever happens.

A call of the system that does not return, as on a disk that hangs, cannot be interrupted. So the caller waits for the
thread, and the thread says how far it is. Once it is decided how the save ended the caller is told that, though what
follows (giving back what was staged, the catalog, retention) may go on for as long as the disk takes.
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
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.progress import Progress
from ckstore.ops.context import SaveWatch
from ckstore.ops.pace import pause
from ckstore.ranks.rank_identity import RankIdentity

R = TypeVar("R")

GRACE_LEAST_S = 30.0
"""Who is publishing when the deadline passes has as long again, and at least this."""
_QUIET_S = 10.0
"""A disk under heavy load takes seconds for one fsync; with no sign of life for longer, the deadline counts."""
_FOLLOWS_S = 5.0
"""What follows a decision has at least this: as long as a save waits for the catalog."""
_STOPS_S = 5.0
_LOOK_S = 1.0


class RankWork:
    """The work of one rank at one save.

    Args:
        who: The rank.
        timeout_s: How long it waits for the others; infinite: for ever, and without a thread.
        grace_s: How long besides if it is publishing; None: as long again, and at least `GRACE_LEAST_S`.
    """

    def __init__(self, who: RankIdentity, timeout_s: float, grace_s: float | None = None) -> None:
        self.who = who
        self.timeout_s = timeout_s
        self.grace_s = max(GRACE_LEAST_S, timeout_s) if grace_s is None else grace_s
        self._deadline_s = time.monotonic() + timeout_s
        self.progress: Progress | None = None  # called in the thread of the caller
        self._bytes: tuple[int, int] | None = None
        self._changed = threading.Condition()  # its lock may be taken again by the thread that has it
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
        """Return how many seconds are left until the deadline."""
        return self._deadline_s - time.monotonic()

    @property
    def is_late_for_others(self) -> bool:
        """Whether it has passed for a rank that is publishing, too."""
        return time.monotonic() >= self._deadline_s + self.grace_s

    # ------------------------------------------------------------------ for the thread

    def doing(self, act: str, *, offers: bool = False) -> None:
        """Say what is done next; with `offers` the others may publish from then on."""
        with self._changed:
            # Under the same lock as `_end_now`: so either the caller's answer counts, or this step, never both.
            if self._stopped is not None:
                raise self._stopped
            self._doing = act
            self._offered |= offers
            self._moved_s = time.monotonic()

    def staged_bytes(self, done_bytes: int, all_bytes: int) -> None:
        """Say how much is staged; raises as `doing`."""
        self.doing("staged its part")
        with self._changed:
            self._bytes = done_bytes, all_bytes
            self._changed.notify()

    def publishing(self, step: int) -> None:
        """As in `SaveWatch`; raises as `doing`. From here on the caller gives up without knowing the outcome."""
        del step
        with self._changed:
            self.doing("published")
            self._publishing = True

    def decided(self, how: CheckpointInfo | CkstoreError) -> None:
        """Say how the save has ended for all ranks."""
        with self._changed:
            if self._decided is None:
                self._decided = how
                self._decided_s = self._moved_s = time.monotonic()

    # ------------------------------------------------------------------ for the caller

    def run(self, work: Callable[[], R], unwanted: Callable[[R], object] = lambda _: None) -> R:
        """Do the work; return what it returns, or what was decided, or raise why it failed.

        `unwanted` is given what it returns after all, when the caller has given up. After `RankFailed` nothing was
        published, after `UnknownOutcome` a rank may have.
        """
        if self.timeout_s == math.inf:
            return work()
        name = f"ckstore rank {self.who.rank}"
        thread = threading.Thread(target=self._work, args=(work, unwanted), daemon=True, name=name)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started, as while the interpreter ends: then without a deadline
            return work()
        result: R
        try:
            result = self._wait()
        except BaseException as error:
            with self._changed:  # a signal handler or `progress` raised it
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
        """Return until when the caller waits; it gets later while the thread gets on."""
        if self._decided is not None:  # what follows cannot change it, so its caller need not wait for all of that
            return max(self._deadline_s, self._decided_s + _FOLLOWS_S)
        grace_s = self.grace_s if self._publishing else 0.0
        return max(self._deadline_s + grace_s, self._moved_s + _QUIET_S)

    def _end_now(self) -> CheckpointInfo:
        """Return, or raise, what is known when the thread is waited for no more."""
        if isinstance(self._decided, CkstoreError):
            raise self._decided
        if self._decided is not None:
            warning = (
                f"{self._decided.name} is saved, but what follows a save has not ended: the disk of {self.who} is slow"
            )
            return replace(self._decided, catalogued=False, warnings=(*self._decided.warnings, warning))
        quiet_s = time.monotonic() - self._moved_s
        since = f"{self.who} {self._doing} {quiet_s:.0f} s ago, and the disk of the store has not answered it since"
        name = self.who.name
        if self._offered or self._publishing:
            msg = f"whether {name} was published is not known: {since}"
            self._stopped = UnknownOutcome(msg, hint="look at the disk; ckstore log says whether it is there")
        else:
            msg = f"{name} was not published: {since}"
            self._stopped = RankFailed(msg, hint="look at the disk, then save again")
        raise self._stopped


class WorkWatch(SaveWatch):
    """Says how far a publish is to the work of which it is a part.

    Args:
        work: The work.
        committed: Called when it is durable.
        failed: Called when a try has failed, before the next.
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
        """Say so."""
        self._work.doing("wrote the manifest")

    def publishing(self, step: int) -> None:
        """Go on unless the caller has given up."""
        self._work.publishing(step)

    def committed(self, info: CheckpointInfo) -> None:
        """Say that this is decided: what follows may take long."""
        self._committed(info)

    def patience_s(self) -> float:
        """No longer than the other ranks wait for this one."""
        return self._work.left_s()

    def pause(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Pause, as long as the caller has not given up."""

        def said_and_over() -> bool:
            self._work.doing("paused before another try")
            return is_over()

        if self._failed is not None:
            self._failed()
        pause(seconds, said_and_over)
