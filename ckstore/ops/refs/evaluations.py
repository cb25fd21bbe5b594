"""Evaluations of checkpoints that lack a metric.

During an evaluation, the evaluating process holds the lock of a record (`ckstore.objects.documents.evaluations`), so
that no other process evaluates the same checkpoint, and no rule drops it. An evaluation ends when the checkpoint gets
the metric, when the evaluator requests the next checkpoint, or when the process ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ckstore.errors import BadInput, CkstoreError, InUse, NoSuchRef
from ckstore.fs import locks
from ckstore.model.checkpoint.evaluation import RecordName, metric_key
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.event import RENAMED, Event
from ckstore.model.times import seconds_text
from ckstore.model.words import some_of
from ckstore.objects.documents import evaluations
from ckstore.objects.documents.evaluations import Running
from ckstore.ops import events
from ckstore.ops.config_file import EVALUATION_PATIENCE_S, setting_of
from ckstore.ops.context import Context, annotation_problem
from ckstore.ops.notices import warn
from ckstore.ops.refs.find import find
from ckstore.ops.refs.protection import held

ATTEMPTS = 3
"""The default number of attempts to evaluate a checkpoint. An attempt may fail, for example if memory runs out."""


# The maximum number of consecutive failures to lock a checkpoint. Each attempt waits up to ten seconds for the lock of
# the run. A process that holds this lock for minutes hangs.
_REFUSED_MOST = 30


class Evaluator:
    """Selects the next checkpoint of a run that lacks a metric, and locks it against other evaluators."""

    def __init__(self, context: Context, lacking: tuple[str, ...], *, newest_first: bool, attempts: int | None) -> None:
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise BadInput(f"attempts must be a whole number of at least 1, or None, got {attempts!r:.80}")
        context.check_writable()
        self._context = context
        self._lacking = lacking
        self._newest_first = newest_first
        self._attempts = attempts
        self._refused_count = 0  # how many times in a row a checkpoint could not be locked
        self._waiting: dict[str, CheckpointInfo] = {}
        self._unreadable: set[str] = set()  # ids of checkpoints whose unreadable annotations were reported
        self._given_up: list[str] = []  # checkpoints that used up their attempts and have not been reported yet
        self._journal = (0, 0)  # the stamp of the journal when it was last read
        # Ids of checkpoints whose drop must not be reported. The drop was already reported or happened before this
        # follower began, or the checkpoint was already yielded or is outside the range of the follower.
        self._settled = {event.id for event in self._drops("")}
        # The records of the checkpoint that is being evaluated, one for each metric that it lacks.
        self._own: list[tuple[RecordName, locks.DirectoryLock]] = []

    def add(self, found: Iterable[CheckpointInfo]) -> None:
        """Add checkpoints that may lack the metric."""
        self._waiting |= {info.id: info for info in found if self._lacks(info)}

    def pass_over(self, ids: Iterable[str]) -> None:
        """Do not report drops of these checkpoints, which the follower does not yield."""
        self._settled.update(ids)

    def tell_dropped(self, run: str) -> None:
        """Warn once about checkpoints of the run that were dropped before they had the metric."""
        named = []
        for event in self._drops(run):
            if event.id in self._settled or event.step is None:
                continue
            self._settled.add(event.id)
            lacks = event.metrics is not None and not {*self._lacking} <= {*event.metrics}
            # Do not report a checkpoint that was replaced, renamed or restored, since its step still has a checkpoint
            # that can be evaluated.
            if lacks and not event.why.startswith(RENAMED) and not self._context.layout.of_step(run, event.step):
                named.append(event.name)
        if named:
            warn(
                f"dropped before they had {some_of(self._lacking)}: {some_of([*dict.fromkeys(named)])}. Keep more, "
                "or begin with the newest (newest_first=True)"
            )

    def _drops(self, run: str) -> list[Event]:
        """Return the drops of a run, or of all runs if `run` is empty, from the journal.

        If the journal has not changed since the last call, return nothing.
        """
        stamp = events.journal_stamp(self._context.layout)
        if stamp == self._journal:
            return []
        self._journal = stamp
        try:
            return [one for one in events.events(self._context, run=run or None) if one.event == "dropped" and one.id]
        except (CkstoreError, OSError) as error:  # the journal is only informative, and evaluations continue
            warn(f"checkpoints that are deleted before their evaluation cannot be named: {error}")
            return []

    def _lacks(self, info: CheckpointInfo) -> list[str]:
        return [metric for metric in self._lacking if metric not in info.metrics]

    def pick(self) -> CheckpointInfo | None:
        """Return the next checkpoint that lacks the metric and that no other evaluator has, or None."""
        try:
            return self._pick() if self._waiting else None
        finally:
            self._tell_given_up()

    def _pick(self) -> CheckpointInfo | None:
        records = evaluations.records(self._context.layout)
        for waiting in sorted(self._waiting.values(), key=lambda info: info.order, reverse=self._newest_first):
            info = self._now(waiting)
            if info is None:
                continue
            try:
                if not self._begin(info, records):
                    continue
                again = self._look_again(info)
            except InUse:
                # Another process has locked the run or the checkpoint, or this process lost the lock of the run. The
                # follower tries again later.
                self.end(tried=False)
                self._refused_count += 1
                if self._refused_count > _REFUSED_MOST:
                    raise
                return None
            except BaseException:  # the checkpoint was not returned, so this must not count as an attempt
                self.end(tried=False)
                raise
            self._refused_count = 0
            if again is not None and self._lacks(again) == self._lacks(info):
                del self._waiting[again.id]
                self._settled.add(again.id)
                return again
            self.end(tried=False)
        return None

    def _look_again(self, info: CheckpointInfo) -> CheckpointInfo | None:
        """Return the current info of a checkpoint after its record was created, or None if it need not be evaluated."""
        # Another evaluator may have finished the evaluation before the record was created.
        try:
            # Lock the checkpoint. If another process is dropping it, having found no evaluation before the record
            # existed, this waits until the drop is complete.
            with held(self._context, info, is_durable=True):
                return self._now(info)
        except NoSuchRef:
            return self._now(info)

    def _now(self, waiting: CheckpointInfo) -> CheckpointInfo | None:
        """Return the current info of a checkpoint, or None if the checkpoint need not be evaluated."""
        try:
            info = find(self._context, waiting)
        except NoSuchRef:  # it was dropped
            self._waiting.pop(waiting.id, None)
            return None
        if problem := self._context.notices.problems.get(annotation_problem(info)):
            # The unreadable annotations may contain the metric, and no metric can be added to them.
            if info.id not in self._unreadable:
                self._unreadable.add(info.id)
                warn(f"{problem}. The checkpoint is not evaluated until its annotations are repaired")
            return None
        if self._lacks(info):
            return info
        self._waiting.pop(info.id, None)
        return None

    def _begin(self, info: CheckpointInfo, records: list[RecordName]) -> bool:
        """Begin an evaluation of each missing metric.

        Return False if another evaluator evaluates one of the metrics, or if the attempts for one of them are used up.
        """
        for metric in self._lacks(info):
            before = evaluations.of_metric(records, info.id, metric)
            last = before[-1] if before else None
            number = 1 if last is None else last.number + 1
            running = None if last is None else evaluations.running(self._context.layout, last)
            # The lock of an evaluator on another host may not be visible. Therefore a record without a visible lock
            # counts as a running evaluation until it is older than the patience time.
            is_over = running is None or not (running.is_locked or _age_s(running) < patience_s(self._context))
            may_try = self._attempts is None or number <= self._attempts
            if is_over and not may_try:
                del self._waiting[info.id]
                self._given_up.append(f"{info.name} ({metric}, {number - 1})")
            lock = None
            if is_over and may_try:
                lock = evaluations.begin(self._context.layout, info.id, metric, number)
            if lock is None:
                self.end(tried=False)
                return False
            self._own.append((RecordName(info.id, metric_key(metric), number), lock))
            # Keep the last older record, so that the number of attempts is known if this evaluation is cancelled.
            evaluations.remove(self._context.layout, before[:-1])
        return True

    def _tell_given_up(self) -> None:
        if self._given_up:
            listed, self._given_up = some_of(self._given_up), []
            warn(
                f"skipped after as many evaluations without the metric as attempts= allows: {listed}. "
                "attempts=None offers them again"
            )

    def end(self, *, tried: bool) -> None:
        """End the evaluation of the last selected checkpoint.

        If the checkpoint still lacks the metric, other evaluators may evaluate it. `tried` is whether this evaluation
        then counts as a failed attempt.
        """
        finish = evaluations.end if tried else evaluations.give_back
        while self._own:
            finish(self._context.layout, *self._own.pop())


def patience_s(context: Context) -> float:
    """Return for how many seconds an evaluation prevents a drop of its checkpoint."""
    return setting_of(context.layout, EVALUATION_PATIENCE_S)


def _age_s(running: Running) -> float:
    # Use the clock of this host, since the clocks of hosts differ only by seconds. A time in the future counts as now.
    return max(0.0, time.time() - running.since)


class EvaluatedCheckpoints(NamedTuple):
    """The checkpoints of a store that are being evaluated."""

    waited_for: Mapping[str, str]  # id -> the process that evaluates it
    overdue: Mapping[str, str]  # id -> the process whose evaluation exceeds `evaluation_patience_s`


def kept_for_evaluation(context: Context, id: str | None = None) -> EvaluatedCheckpoints:
    """Return the checkpoints that evaluations protect, and the checkpoints whose evaluation takes too long.

    If `id` is given, only this checkpoint is considered.
    """
    names = [name for name in evaluations.records(context.layout) if id in (None, name.id)]
    going_on = [running for name in names if (running := evaluations.running(context.layout, name)) is not None]
    if not going_on:
        return EvaluatedCheckpoints({}, {})
    most_s = patience_s(context)
    waited_for: dict[str, str] = {}
    overdue: dict[str, str] = {}
    for running in going_on:
        who = "by another process" if running.says is None else str(running.says)
        if _age_s(running) < most_s:
            waited_for[running.name.id] = f"it is being evaluated {who}"
        else:
            limit = f"longer than {seconds_text(most_s)} (evaluation_patience_s)"
            overdue[running.name.id] = f"its evaluation takes {limit}: {who}"
    return EvaluatedCheckpoints(waited_for, overdue)


def check_not_evaluated(context: Context, info: CheckpointInfo) -> None:
    """Raise if a process is evaluating a checkpoint.

    Raises:
        InUse: A process is evaluating it.
    """
    who = kept_for_evaluation(context, info.id).waited_for.get(info.id, "")
    if who:
        raise InUse(
            f"{info.shown}: {who}",
            hint="wait until that process has added its metric, or end that process, which ends its evaluation",
        )
