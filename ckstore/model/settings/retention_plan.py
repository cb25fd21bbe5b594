"""Plan which checkpoints to keep and which to drop, and record the reasons, without files and without a clock.

Each rule of a policy is applied to each run separately. A checkpoint is kept if any rule keeps it. Protected
checkpoints are never dropped, whatever the policy says. A checkpoint is protected if a tag or an unexpired pin names
it, a process has it open or evaluates it, the mirror of the store needs it, or it is the newest valid checkpoint of its
run. Checkpoints are ordered by their commits, never by steps, names or times. If training was resumed from an older
step, or a run was started again in the same store, the newest checkpoint is therefore the checkpoint that was saved
last. Only `keep_within` and the rules for hours, days and weeks use times.

A damaged checkpoint never takes the place of a valid checkpoint in a count. For example, `keep_last=3` searches
backwards until it has found three valid checkpoints, and also keeps the damaged checkpoints between them. An unhealthy
checkpoint does not count either. Each counting rule keeps the healthy checkpoints that it would keep if there were no
unhealthy ones. It also keeps the unhealthy checkpoints that it would keep if they were healthy. In total, it keeps at
most twice as many checkpoints. An unhealthy checkpoint is never the best by a metric. The newest valid and healthy
checkpoint is never dropped. A budget is applied last. It drops the oldest checkpoints that rules keep, beginning with
unhealthy ones, but no protected ones. If no checkpoint of a run has a value for the metric of a rule, the whole run is
kept.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from ckstore.model.best import Best, metrics_there
from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention import Budget, RetentionPolicy
from ckstore.model.sizes import size_text
from ckstore.model.times import duration_s, time_of_text
from ckstore.model.words import counted, first_of, in_lines, printable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint with the facts that decide whether it is kept."""

    info: CheckpointInfo
    tags: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()  # the description of each unexpired pin of the checkpoint
    in_use: bool = False  # whether a process has the checkpoint open
    # The damage (a missing or touched blob, or a mark of a read or a verification); empty if the checkpoint is valid.
    damage: str = ""
    # The next three facts keep the checkpoint if they are not empty.
    doubt: str = ""  # why the metrics of the checkpoint are unknown
    wanted_by: str = ""  # why the mirror of the store needs the checkpoint
    evaluated: str = ""  # the process that evaluates the checkpoint
    overdue: str = ""  # the process whose evaluation of the checkpoint exceeds the time limit
    # File -> size of each blob in the directory of the checkpoint; needed only if there is a budget.
    blobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the checkpoint is complete and has no known damage."""
        return not self.damage

    @property
    def healthy(self) -> bool:
        """Whether the checkpoint is healthy, as far as its save checked the values."""
        return not self.info.unhealthy


@brief()
@dataclass(frozen=True, slots=True)
class PlanEntry:
    """The decision on one checkpoint.

    Attributes:
        info: The checkpoint.
        keep: Whether it is kept.
        reasons: All reasons for the decision.
        relied_on: Whether the plan requires that the checkpoint is valid.
        protected: Whether the checkpoint is kept whatever a policy says.
    """

    info: CheckpointInfo
    keep: bool
    reasons: tuple[str, ...]
    relied_on: bool = False
    protected: bool = False

    @property
    def run(self) -> str:
        """Run of the checkpoint."""
        return self.info.run

    @property
    def step(self) -> int:
        """Step of the checkpoint."""
        return self.info.step

    def __str__(self) -> str:
        return printable(f"{self.info.name} {'kept' if self.keep else 'dropped'} because {'; '.join(self.reasons)}")


@brief()
@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The decisions of a policy on a history, before they are carried out.

    Attributes:
        policy: The policy. None if each run has its own policy from the settings of the store.
        now: The time for which the plan was made.
        entries: All checkpoints that were considered, by run and then in the order of commits.
        notes: Facts that the user may not expect, one sentence each.
    """

    policy: RetentionPolicy | None
    now: datetime
    entries: tuple[PlanEntry, ...]
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[PlanEntry, ...]:
        """The entries of kept checkpoints."""
        return tuple(entry for entry in self.entries if entry.keep)

    @property
    def dropped(self) -> tuple[PlanEntry, ...]:
        """The entries of dropped checkpoints, oldest first."""
        return tuple(entry for entry in self.entries if not entry.keep)

    def __str__(self) -> str:
        notes = (printable(f"warning: {note}") for note in self.notes)
        return in_lines(self.entries, [outcome(self), *first_of(notes)])


def outcome(plan: RetentionPlan) -> str:
    """Return a sentence on the number of checkpoints that the plan drops."""
    return f"would drop {len(plan.dropped)} of {counted(len(plan.entries), 'checkpoint')}"


def plan(
    policy: RetentionPolicy | Mapping[str, RetentionPolicy],
    history: Sequence[Candidate],
    now: datetime,
    budget: Budget | None = None,
    beside: Mapping[str, Mapping[str, int]] | None = None,
) -> RetentionPlan:
    """Return the decision to keep or drop each checkpoint, with the reasons.

    Args:
        policy: The policy for all runs, or a policy for each run. In the second case, a run without a policy is kept.
        history: All checkpoints of each run to consider, in any order. Other runs are not changed.
        now: The current time, with a time zone.
        budget: The budget of all runs together. If given, the candidates in `history` must have their blobs.
        beside: Run -> file -> size of each blob of superseded checkpoints that are kept. These blobs count only for
            budgets.
    """
    beside = beside or {}
    entries: list[PlanEntry] = []
    notes: list[str] = []
    for run in sorted({candidate.info.run for candidate in history}):
        # Sort by commits. After a resume from an older step, the newest checkpoint may have a smaller step than others.
        newest_first = sorted((c for c in history if c.info.run == run), key=lambda c: c.info.order, reverse=True)
        of_run = policy if isinstance(policy, RetentionPolicy) else policy.get(run)
        planned = _Run(of_run, newest_first, now, beside.get(run, {}))
        entries += planned.entries()
        notes += planned.notes
    if budget is not None:
        blobs = {candidate.info.name: candidate.blobs for candidate in history}
        staying = {file: nbytes for of_run in beside.values() for file, nbytes in of_run.items()}
        over = over_budget(entries, blobs, budget, "the store", staying)
        entries, notes = over.entries, [*notes, *over.notes]
    single = policy if isinstance(policy, RetentionPolicy) else None
    return RetentionPlan(policy=single, now=now, entries=tuple(entries), notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A plan after applying a budget."""

    entries: list[PlanEntry]  # the entries in the same order; some that were kept are now dropped
    notes: list[str]  # a note if the budget cannot be met


def over_budget(
    entries: Sequence[PlanEntry],
    blobs: Mapping[str, Mapping[str, int]],
    budget: Budget,
    whose: str,
    staying: Mapping[str, int],
) -> Budgeted:
    """Drop the oldest checkpoints until the remaining ones are within a budget.

    Unhealthy checkpoints are dropped first, and the best checkpoints by a metric last. Protected checkpoints are kept.
    Each file of a blob counts once.

    Args:
        entries: The plan before the budget.
        blobs: Name of a checkpoint -> file -> size of each blob.
        budget: The budget.
        whose: The name of the run or store that has the budget, for the reasons.
        staying: File -> size of each blob that is kept for checkpoints without an entry.
    """
    uses: Counter[str] = Counter(staying.keys())
    nbytes: dict[str, int] = {**staying}
    for entry in entries:
        if entry.keep:
            uses.update(blobs[entry.info.name].keys())
            nbytes |= blobs[entry.info.name]
    total = sum(nbytes.values())
    if total <= budget.most:
        return Budgeted([*entries], [])
    gone: set[str] = set()
    # Dropping a checkpoint without local bytes, such as an evicted one, would free nothing.
    able = [entry for entry in entries if entry.keep and not entry.protected and blobs[entry.info.name]]
    is_best = {entry.info.name: any(map(_BEST_REASON.search, entry.reasons)) for entry in able}
    for entry in sorted(able, key=lambda entry: (is_best[entry.info.name], not entry.info.unhealthy, entry.info.order)):
        if total <= budget.low:
            break
        gone.add(entry.info.name)
        uses.subtract(blobs[entry.info.name].keys())
        total -= sum(size for file, size in blobs[entry.info.name].items() if uses[file] == 0)
    reason = f"{whose}{OVER_BUDGET}{budget}"
    made = [
        replace(entry, keep=False, reasons=(reason,), relied_on=False) if entry.info.name in gone else entry
        for entry in entries
    ]
    left = f"{whose} stays above its budget of {budget}: protected checkpoints take {size_text(total)}"
    return Budgeted(made, [left] if total > budget.most else [])


OVER_BUDGET = " is above its budget of "
LACKS_METRIC = "it has no metric "
"""The start of the reason why a rule by a metric does not keep a checkpoint without this metric."""
Verdict = tuple[Candidate, bool, str]
"""A checkpoint, whether a rule keeps it, and why."""
_BEST_REASON = re.compile(r" best by .* \((?:min|max)\)\Z")


class _Run:
    """The plan for one run, to which each rule adds reasons for or against keeping each checkpoint."""

    def __init__(
        self,
        policy: RetentionPolicy | None,
        newest_first: Sequence[Candidate],
        now: datetime,
        beside: Mapping[str, int],
    ) -> None:
        self._beside = beside
        self.notes: list[str] = []
        self._history = newest_first
        self._kept: dict[str, list[str]] = {c.info.name: [] for c in newest_first}
        self._not_kept: dict[str, list[str]] = {c.info.name: [] for c in newest_first}
        self._relied_on: set[str] = set()
        self._protected: set[str] = set()
        self._budget = None if policy is None else policy.budget
        # Protect first, because protection does not depend on the policy.
        self._protect()
        self._protected = {name for name, reasons in self._kept.items() if reasons}
        if policy is None or not policy.has_keep_rule:
            why = "no rule of the store applies to its run" if policy is None else "the run is within its budget"
            for candidate in self._history:
                self._kept[candidate.info.name].append(why)
            return
        if policy.keep_last is not None:
            of = f"{policy.keep_last} newest" if policy.keep_last > 1 else "newest"
            self._first(newest_first, policy.keep_last, of)
        if policy.keep_every is not None:
            self._every(policy.keep_every)
        if policy.keep_nearest is not None:
            self._nearest(policy.keep_nearest)
        for unit, count in (("hour", policy.keep_hourly), ("day", policy.keep_daily), ("week", policy.keep_weekly)):
            if count is not None:
                self._twice(self._history, partial(self._newest_of_each, unit=unit, count=count))
        for best in policy.bests:
            self._best(best)
        if policy.keep_within is not None:
            self._within(policy.keep_within, now)

    def entries(self) -> list[PlanEntry]:
        made = []
        for candidate in reversed(self._history):
            name = candidate.info.name
            kept = self._kept[name]
            if candidate.overdue and not kept:
                self._not_kept[name].append(candidate.overdue)
                self.notes.append(f"{name} is dropped while it is being evaluated: {candidate.overdue}")
            reasons = tuple(dict.fromkeys(kept or self._not_kept[name]))
            made.append(
                PlanEntry(candidate.info, bool(kept), reasons, name in self._relied_on, name in self._protected)
            )
        if self._budget is None or not self._history:
            return made
        blobs = {candidate.info.name: candidate.blobs for candidate in self._history}
        over = over_budget(made, blobs, self._budget, f"the run {self._history[0].info.run}", self._beside)
        self.notes += over.notes
        return over.entries

    def _nearest(self, every: int) -> None:
        groups: dict[int, list[Candidate]] = {}
        for candidate in self._history:
            # Each checkpoint belongs only to its nearest multiple. A later checkpoint that is farther away from a
            # multiple can therefore not replace a kept one.
            groups.setdefault((candidate.info.step + (every - 1) // 2) // every, []).append(candidate)
        for multiple, group in groups.items():
            # The sort is stable, so the newer of two equally near checkpoints is first.
            group.sort(key=lambda c: abs(c.info.step - multiple * every))
            self._first(group, 1, f"nearest to step {multiple * every}")

    def _newest_of_each(self, ordered: Sequence[Candidate], unit: str, count: int) -> Iterator[Verdict]:
        """Keep the newest valid checkpoint of each of the newest `count` hours, days or weeks that have one."""
        found: set[object] = set()
        for candidate in ordered:
            when = _start_of(unit, time_of_text(candidate.info.created))
            if when in found or len(found) == count:
                yield candidate, False, f"it is not the newest of one of the {count} newest {unit}s"
            elif candidate.valid:
                found.add(when)
                yield candidate, True, f"it is the newest of its {unit}"
            else:
                yield candidate, True, f"it is the newest of its {unit}, and damaged: {candidate.damage}"

    def _twice(self, ordered: Sequence[Candidate], rule: Callable[[Sequence[Candidate]], Iterator[Verdict]]) -> None:
        """Apply a counting rule to the healthy checkpoints, then to all checkpoints to decide on the unhealthy ones.

        The rule keeps the healthy checkpoints that it would keep if there were no unhealthy ones. At most twice as many
        checkpoints are kept, even if a diverged training continues to save.
        """
        healthy = [candidate for candidate in ordered if candidate.healthy]
        for candidate, keep, reason in rule(healthy):
            self._note(candidate, reason, keep=keep)
        for candidate, keep, reason in rule(ordered) if len(healthy) < len(ordered) else ():
            if not candidate.healthy:
                self._note(candidate, f"{reason}; it is unhealthy, and does not replace a healthy one", keep=keep)

    def _note(self, candidate: Candidate, reason: str, *, keep: bool) -> None:
        name = candidate.info.name
        (self._kept if keep else self._not_kept)[name].append(reason)
        if keep and candidate.valid:
            self._relied_on.add(name)

    def _protect(self) -> None:
        for candidate in self._history:
            kept = self._kept[candidate.info.name]
            kept += [f"it has the tag {tag}" for tag in candidate.tags]
            kept += [f"it is pinned: {pin}" for pin in candidate.pins]
            kept += ["it is open for reading"] if candidate.in_use else []
            kept += [candidate.doubt] if candidate.doubt else []
            kept += [candidate.wanted_by] if candidate.wanted_by else []
            kept += [candidate.evaluated] if candidate.evaluated else []
        # A resume loads this checkpoint. If a policy dropped it, the run could not continue.
        newest = next((c for c in self._history if c.valid), None)
        if newest is not None:
            self._note(newest, f"it is the newest valid checkpoint of the run {newest.info.run}", keep=True)
            healthy = next((c for c in self._history if c.valid and c.healthy), newest)
            if healthy is not newest:
                self._note(healthy, f"it is the newest healthy checkpoint of the run {newest.info.run}", keep=True)
            return
        # No checkpoint is valid, so keep all of them: their bytes may be all that can be rescued.
        for candidate in self._history:
            self._kept[candidate.info.name].append(f"no checkpoint of the run {candidate.info.run} is valid")

    def _first(self, ordered: Sequence[Candidate], count: int, of: str) -> None:
        """Keep the first `count` valid checkpoints, and the damaged checkpoints before the last of them."""
        self._twice(ordered, lambda some: _first_of(some, count, of))

    def _every(self, every: int) -> None:
        for candidate in self._history:
            if candidate.info.step % every == 0:
                self._kept[candidate.info.name].append(f"its step is a multiple of {every}")
            else:
                self._not_kept[candidate.info.name].append(f"its step is not a multiple of {every}")

    def _best(self, best: Best) -> None:
        sign = 1 if best.mode == "min" else -1
        ranked = [c for c in self._history if not math.isnan(c.info.metrics.get(best.metric, math.nan))]
        # `ranked` excludes NaN, because a list with NaN cannot be sorted. The sort is stable, so the newer of two
        # equally good checkpoints is first.
        ranked.sort(key=lambda c: sign * c.info.metrics[best.metric])
        for candidate, keep, reason in _first_of([c for c in ranked if c.healthy], best.n, str(best)):
            self._note(candidate, reason, keep=keep)
        for candidate in ranked:
            if not candidate.healthy:
                self._note(candidate, f"it is unhealthy, so it is not the best by {best.metric}", keep=False)
        for candidate in self._history:
            if best.metric not in candidate.info.metrics:
                self._not_kept[candidate.info.name].append(f"{LACKS_METRIC}{best.metric}")
            elif math.isnan(candidate.info.metrics[best.metric]):
                self._not_kept[candidate.info.name].append(f"its {best.metric} is nan")
        # The metric may be misspelt or not logged yet. Without this exception, the rule would drop all checkpoints
        # except the newest.
        if not ranked:
            self._keep_unjudged(best.metric)
        elif not any(c.healthy for c in ranked):  # the same exception, for healthy checkpoints
            for candidate in self._history:
                if candidate.healthy:
                    reason = f"no healthy checkpoint has a number for the metric {best.metric}"
                    self._note(candidate, reason, keep=True)

    def _keep_unjudged(self, metric: str) -> None:
        """Keep all checkpoints, because a metric that no checkpoint has may be misspelt."""
        lacking = f"no checkpoint of the run {self._history[0].info.run} has a number for the metric {metric}"
        but = ", except by the budget" if self._budget is not None else ""
        metrics = metrics_there((candidate.info.metrics for candidate in self._history), metric)
        for candidate in self._history:
            self._kept[candidate.info.name].append(lacking)
        self.notes.append(f"{lacking}, so none of its checkpoints is dropped{but}; {metrics}")

    def _within(self, within: str | float, now: datetime) -> None:
        text = within if isinstance(within, str) else f"{within} s"
        seconds = duration_s(within, "keep_within")
        for candidate in self._history:
            age_s = (now - time_of_text(candidate.info.created)).total_seconds()
            if age_s <= seconds:
                self._kept[candidate.info.name].append(f"it was saved in the last {text}")
            else:
                self._not_kept[candidate.info.name].append(f"it is older than {text}")


def _first_of(ordered: Sequence[Candidate], count: int, of: str) -> Iterator[Verdict]:
    found = 0
    for candidate in ordered:
        if found == count:
            yield candidate, False, f"it is not {'among ' if count > 1 else ''}the {of}"
        elif candidate.valid:
            found += 1
            yield candidate, True, f"it is {'one of ' if count > 1 else ''}the {of}"
        else:
            would_be = f"it would be {'one of ' if count > 1 else ''}the {of}"
            yield candidate, True, f"{would_be}, but is damaged: {candidate.damage}"


def _start_of(unit: str, time: datetime) -> tuple[int, ...]:
    """Return a key that is equal for all times in the same hour, day or week (UTC)."""
    utc = time.astimezone(UTC)
    if unit == "week":
        return utc.isocalendar()[:2]
    day = (utc.year, utc.month, utc.day)
    return (*day, utc.hour) if unit == "hour" else day
