"""Limits on time and load (rates, budgets, shares of a processor), pauses, timers, and the totals of saves."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal, TypeVar

from ckstore.errors import BadInput
from ckstore.interpreter import end_overdue_pauses
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.metrics import Metric
from ckstore.model.sizes import is_number
from ckstore.model.times import time_of_text
from ckstore.model.words import counted

Clock = Callable[[], float]
T = TypeVar("T")
_STRETCH_S = 0.02


class RateLimiter:
    """Limits the total read rate of several threads; before a read, a thread waits until the rate allows the read."""

    def __init__(
        self, bytes_s: float, *, clock: Clock = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not (is_number(bytes_s) and bytes_s > 0):
            raise BadInput(f"a rate is a number of bytes a second above 0, got {bytes_s!r}")
        self._bytes_s = bytes_s
        self._clock, self._sleep = clock, sleep
        self._mutex = threading.Lock()
        self._free_s = clock()

    def wait(self, nbytes: int) -> None:
        """Wait until `nbytes` more may be read."""
        with self._mutex:
            now_s = self._clock()
            # Unused time does not accumulate, so that there is no burst after a pause.
            starts_s = max(now_s, self._free_s)
            self._free_s = starts_s + nbytes / self._bytes_s
        # Sleep outside the lock, so that other threads can enter meanwhile.
        if starts_s > now_s:
            self._sleep(starts_s - now_s)


class ReadBudget:
    """Limits the time of reading.

    A blob is read completely or not at all, and only if it can be read in time. The duration is estimated from previous
    blobs. The first blob is always read, so that every call makes progress.

    Attributes:
        ended: Whether a blob was refused.
    """

    def __init__(self, budget_s: float | None, *, clock: Clock = time.monotonic) -> None:
        self.ended = False
        self._budget_s = budget_s
        self._clock = clock
        self._mutex = threading.Lock()
        self._began_s = clock()
        self._reading_since_s: float | None = None
        self._begun_bytes = self._done_bytes = 0

    @property
    def fresh(self) -> bool:
        """Whether there is a budget and no blob was started yet."""
        return self._budget_s is not None and self._reading_since_s is None

    def begin(self, nbytes: int) -> bool:
        """Whether a blob of that size may be read; if so, `done` must be called."""
        if self._budget_s is None:
            return True
        with self._mutex:
            now_s = self._clock()
            if self._reading_since_s is None:
                self._reading_since_s = now_s
            # After one refusal, all blobs are refused. Otherwise each call would read the small blobs that still fit,
            # and large blobs would never be read.
            elif self.ended or now_s - self._began_s + self._takes_s(now_s, nbytes) > self._budget_s:
                self.ended = True
                return False
            self._begun_bytes += nbytes
            return True

    def done(self, nbytes: int) -> None:
        """Record that a blob was read."""
        with self._mutex:
            self._done_bytes += nbytes

    def _takes_s(self, now_s: float, nbytes: int) -> float:
        """Return how many seconds it will take to read another blob and the blobs that are being read."""
        # Measure from the first blob and not from the start, since opening and listing do not depend on the read rate.
        spent_s = now_s - (self._reading_since_s or now_s)
        if not self._done_bytes or spent_s <= 0:
            return 0.0
        return (self._begun_bytes - self._done_bytes + nbytes) * spent_s / self._done_bytes


class Share:
    """Limits the work of a process to a share of one processor, by a pause after each stretch of work.

    Only processor time counts, so that waiting for a processor on a busy machine does not count as work.
    """

    def __init__(
        self, share: float, *, used: Clock = time.process_time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._share = share
        self._used, self._sleep = used, sleep
        self._begun_s = used()

    @property
    def is_due(self) -> bool:
        """Whether there was enough work since the last pause to require another pause."""
        # A stretch is short, so that it slows down a training step by no more than the usual noise.
        return self._used() - self._begun_s >= _STRETCH_S

    def rest(self) -> None:
        """Pause, if a pause is due."""
        if self.is_due:
            self._sleep((self._used() - self._begun_s) * (1 / self._share - 1))
            self._begun_s = self._used()


class DutyCycle:
    """Limits repeated work to a share of the time.

    After work that was not very short, `do` skips it for a while. Only processor time counts, so that short work is not
    skipped on a busy machine.
    """

    def __init__(
        self, share: float, *, free_s: float, clock: Clock = time.monotonic, used: Clock = time.thread_time
    ) -> None:
        self._share = share
        self._free_s = free_s
        self._clock, self._used = clock, used
        self._rests_until_s = -math.inf
        self._wakes = 0
        self._is_new = True

    def do(self, work: Callable[[], T], *, expected_s: float = 0.0) -> T | None:
        """Do the work and return its result, or return None if the work is skipped.

        The first work is skipped if it is expected to take long, because the process may end soon.
        """
        is_new, self._is_new = self._is_new, False
        if is_new and not self._wakes and expected_s > self._free_s:
            self._rests_until_s = self._clock() + expected_s / self._share
        if self._clock() < self._rests_until_s:
            return None
        wakes, begun_s = self._wakes, self._used()
        done = work()
        used_s = self._used() - begun_s
        # If `wake` was called during the work, the work may have missed the reason for this call, and must be done
        # again.
        if used_s > self._free_s and self._wakes == wakes:
            self._rests_until_s = self._clock() + used_s / self._share
        return done

    def wake(self) -> None:
        """Make the next call of `do` do the work, even if another thread is doing it now."""
        self._wakes += 1
        self._rests_until_s = -math.inf


_mutex = threading.RLock()  # a signal handler may run while this thread holds it


def _renew_in_child() -> None:
    global _mutex  # noqa: PLW0603
    _mutex = threading.RLock()  # a thread that does not exist in the child may have held the old mutex


os.register_at_fork(after_in_child=_renew_in_child)


_POLL_S = 0.2
_process_end_s = math.inf
"""The time at which this process will be killed, on the monotonic clock. A signal handler changes it."""


def process_ends_in(grace_s: float) -> None:
    """Announce that this process will be killed in `grace_s` seconds, or never if `math.inf`.

    It may be called in a signal handler.
    """
    global _process_end_s  # noqa: PLW0603
    _process_end_s = time.monotonic() + grace_s


def process_end_s() -> float:
    """Return when this process will be killed, on the monotonic clock, or `math.inf` if this is not known."""
    return _process_end_s


def pause(seconds: float, is_over: Callable[[], bool]) -> None:
    """Pause until the time has passed, `is_over` is True, or this process learns that it will be killed."""
    deadline_s, end_s = time.monotonic() + seconds, _process_end_s
    # Sleep in short intervals, since a signal handler that only sets a flag does not end a long sleep.
    while (left_s := deadline_s - time.monotonic()) > 0 and _process_end_s == end_s and not is_over():
        end_overdue_pauses(left_s)
        time.sleep(min(left_s, _POLL_S))


class PhaseTimer:
    """Measures the duration of each part of a save; a part ends when the next part begins, and may occur repeatedly."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # part -> seconds
        self._begun = time.monotonic()

    def end(self, part: str) -> None:
        """Record that the current part has ended."""
        now = time.monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._begun
        self._begun = now


class SaveTotals:
    """Counts the saves of one open store; its methods may be called from several threads."""

    def __init__(self) -> None:
        self._outcomes = dict.fromkeys(("saved", "failed", "skipped"), 0)
        self._bytes = dict.fromkeys(("logical", "new", "reused", "kept"), 0)
        self._blobs = dict.fromkeys(("written", "reused"), 0)
        self._seconds: dict[str, float] = {}
        self._last: dict[str, CheckpointInfo] = {}
        self._retries = 0
        self._tolerated = self._tolerated_in_a_row = 0
        self._last_failure = ""

    def saved(self, info: CheckpointInfo) -> None:
        """Record a successful save."""
        with _mutex:
            self._outcomes["saved"] += 1
            self._tolerated_in_a_row = 0
            self._last[info.run] = info
            for kind in ("logical", "new", "reused"):
                self._bytes[kind] += getattr(info, f"{kind}_bytes")
            if info.counters is None:
                return
            self._bytes["kept"] += info.counters.kept_bytes
            self._blobs["written"] += info.counters.written_count
            self._blobs["reused"] += info.counters.reused_count
            for name, value in asdict(info.counters).items():
                if name.endswith("_s"):
                    part = name.removesuffix("_s")
                    self._seconds[part] = self._seconds.get(part, 0.0) + value

    def not_saved(self, outcome: Literal["failed", "skipped"]) -> None:
        """Record a save that failed or was skipped."""
        with _mutex:
            self._outcomes[outcome] += 1

    def worked(self) -> None:
        """Record that a save by this process, or by several ranks including this process, succeeded."""
        with _mutex:
            self._tolerated_in_a_row = 0

    def tried_again(self, count: int = 1) -> None:
        """Record failed tries of a save that were retried."""
        with _mutex:
            self._retries += count

    def tolerate(self, why: str) -> int:
        """Record a failed save after which the training continues; return how many failed in a row."""
        with _mutex:
            self._last_failure = why
            self._tolerated += 1
            self._tolerated_in_a_row += 1
            return self._tolerated_in_a_row

    def take_failures(self) -> str:
        """Return a line about the tolerated failures since the last call, or an empty string."""
        with _mutex:
            count, self._tolerated = self._tolerated, 0
            if not count:
                return ""
            last = ", ".join(info.name for _, info in sorted(self._last.items()))
        newest = f"the last checkpoint saved by this process: {last}" if last else "this process saved no checkpoint"
        return f"{counted(count, 'save')} failed; {newest}. The last failure: {self._last_failure}"

    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics of all counts."""
        with _mutex:
            last = {run: self._last[run] for run in sorted(self._last)}
            made = {run: time_of_text(info.created).timestamp() for run, info in last.items()}
            steps = {run: info.step for run, info in last.items()}
            return (
                Metric("ckstore_saves", "counter", "Saves by outcome.", "outcome", dict(self._outcomes)),
                Metric(
                    "ckstore_save_retries", "counter", "Failed attempts that were retried.", "", {"": self._retries}
                ),
                Metric("ckstore_save_bytes", "counter", "Bytes of saved checkpoints.", "kind", dict(self._bytes)),
                Metric("ckstore_save_blobs", "counter", "Blobs of saved checkpoints.", "kind", dict(self._blobs)),
                Metric("ckstore_save_seconds", "counter", "Duration of saves by phase.", "part", dict(self._seconds)),
                Metric("ckstore_last_saved_step", "gauge", "Step of the last save.", "run", steps),
                Metric("ckstore_last_saved_timestamp_seconds", "gauge", "Time of the last save.", "run", made),
            )
