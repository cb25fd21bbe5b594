"""Retention: which checkpoints are kept, and why. Values in, a plan out; no files and no clock.

Each rule of a policy is applied to each run by itself, and what any rule keeps is kept. Whatever the policy says, these
are never dropped: what a tag or an unexpired pin names, what a process has open or evaluates, what waits for the mirror
of the store, and the newest valid checkpoint of each run (so of the store, too). Order is the order of commits, never
the step, the name or the clock: after training was resumed from an older step, or a run was begun again in the same
store, the newest is what was saved last. A clock matters to `keep_within`, and to hours, days and weeks, alone.

A damaged checkpoint never takes the place of a whole one: `keep_last=3` goes back until it has three valid ones, and
keeps what it met on the way. Nor does an unhealthy one: each rule that counts keeps what it would keep if there were
no unhealthy ones, and of the unhealthy ones those that it would keep if they were healthy, so at most twice as many;
none of them is the best by a metric. The newest valid one that is healthy is never dropped. A budget comes last, and
drops the oldest of what rules keep, unhealthy ones first, but nothing of what is never dropped. A metric that no
checkpoint of a run has a number for keeps the whole run.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ckstore.model.best import Best, metrics_there
from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention import Budget, RetentionPolicy
from ckstore.model.sizes import size_text
from ckstore.model.times import duration_s, time_of_text
from ckstore.model.words import counted, first_of, in_lines, printable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint and what counts for its fate."""

    info: CheckpointInfo  # what the store says about it; its `order` and its metrics count
    tags: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()  # what to say of each unexpired pin that names it
    in_use: bool = False  # whether a process has it open
    # What is wrong with it (a missing or touched blob, a mark of a read or a verify); empty: it is valid.
    damage: str = ""
    doubt: str = ""  # why its metrics cannot be known; then it is kept
    wanted_by: str = ""  # why the mirror of the store needs it; then it is kept
    evaluated: str = ""  # that a process evaluates it, and which; then it is kept
    overdue: str = ""  # that its evaluation takes too long to be waited for, and whose it is
    # Digest -> size of each blob in its directory; looked at where there is a budget.
    blobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether it is complete and nothing is known to be wrong with it."""
        return not self.damage

    @property
    def healthy(self) -> bool:
        """Whether its values are finite, as far as its save looked."""
        return not self.info.unhealthy


@brief()
@dataclass(frozen=True, slots=True)
class PlanEntry:
    """What becomes of one checkpoint.

    Attributes:
        info: Which.
        keep: Whether it stays.
        reasons: All reasons for it.
        relied_on: Whether the plan counts on its being valid.
        protected: Whether it stays whatever a policy says.
    """

    info: CheckpointInfo
    keep: bool
    reasons: tuple[str, ...]
    relied_on: bool = False
    protected: bool = False

    @property
    def run(self) -> str:
        """Its run."""
        return self.info.run

    @property
    def step(self) -> int:
        """Its step."""
        return self.info.step

    def __str__(self) -> str:
        return printable(f"{self.info.name} {'kept' if self.keep else 'dropped'} because {'; '.join(self.reasons)}")


@brief()
@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What a policy says about a history, before anything is done.

    Attributes:
        policy: The policy; None: each run has the one of the store for it.
        now: The time that it was made for.
        entries: Every checkpoint that was looked at, by run and then in the order of commits.
        notes: What the user may not expect, one sentence each.
        shown_only: The manifests of what it drops were not read, so that it cannot be applied.
    """

    policy: RetentionPolicy | None
    now: datetime
    entries: tuple[PlanEntry, ...]
    notes: tuple[str, ...] = ()
    shown_only: bool = False

    @property
    def kept(self) -> tuple[PlanEntry, ...]:
        """The entries that stay."""
        return tuple(entry for entry in self.entries if entry.keep)

    @property
    def dropped(self) -> tuple[PlanEntry, ...]:
        """The entries that go, oldest first."""
        return tuple(entry for entry in self.entries if not entry.keep)

    def __str__(self) -> str:
        notes = (printable(f"warning: {note}") for note in self.notes)
        return in_lines(self.entries, [outcome(self), *first_of(notes)])


def outcome(plan: RetentionPlan) -> str:
    """Say how many checkpoints the plan drops."""
    return f"would drop {len(plan.dropped)} of {counted(len(plan.entries), 'checkpoint')}"


def plan(
    policy: RetentionPolicy | Mapping[str, RetentionPolicy],
    history: Sequence[Candidate],
    now: datetime,
    budget: Budget | None = None,
    beside: Mapping[str, Mapping[str, int]] | None = None,
) -> RetentionPlan:
    """Say for each checkpoint whether it is kept or dropped, and why."""
    # `policy`: the rules; or those of each run, and then a run without some is kept. `history`: all checkpoints of each
    # run that is to be looked at, in any order; a run that is left out is left alone. `now` has a time zone. `budget`:
    # of all runs together; their blobs must be in the history. `beside`: digest -> size of each blob of superseded
    # checkpoints that stay, by their runs: they count for budgets alone.
    beside = beside or {}
    entries: list[PlanEntry] = []
    notes: list[str] = []
    for run in sorted({candidate.info.run for candidate in history}):
        # By order of commits: after a resume from an older step the newest may have a smaller step or an older clock.
        newest_first = sorted((c for c in history if c.info.run == run), key=lambda c: c.info.order, reverse=True)
        of_run = policy if isinstance(policy, RetentionPolicy) else policy.get(run)
        planned = _Run(of_run, newest_first, now, beside.get(run, {}))
        entries += planned.entries()
        notes += planned.notes
    if budget is not None:
        blobs = {candidate.info.name: candidate.blobs for candidate in history}
        staying = {digest: nbytes for of_run in beside.values() for digest, nbytes in of_run.items()}
        over = over_budget(entries, blobs, budget, "the store", staying)
        entries, notes = over.entries, [*notes, *over.notes]
    single = policy if isinstance(policy, RetentionPolicy) else None
    return RetentionPlan(policy=single, now=now, entries=tuple(entries), notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class Budgeted:
    """What a budget makes of a plan."""

    entries: list[PlanEntry]  # in the same order; some of those that were kept are dropped
    notes: list[str]  # that it cannot be held, if so


def over_budget(
    entries: Sequence[PlanEntry],
    blobs: Mapping[str, Mapping[str, int]],
    budget: Budget,
    whose: str,
    staying: Mapping[str, int],
) -> Budgeted:
    """Drop the oldest until the others are within a budget, those that are the best by a metric last."""
    # Those that are protected stay; unhealthy ones go first. `blobs`: digest -> size of each blob, by the names of the
    # checkpoints; each counts once. `whose`: of what it is the budget, for the reason. `staying`: as `blobs`, of what
    # is in no entry and stays.
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
    # What has no bytes here, as after an eviction, would be lost from the list for nothing.
    able = [entry for entry in entries if entry.keep and not entry.protected and blobs[entry.info.name]]
    for entry in sorted(able, key=lambda entry: (_is_best(entry), not entry.info.unhealthy, entry.info.order)):
        if total <= budget.low:
            break
        gone.add(entry.info.name)
        uses.subtract(blobs[entry.info.name].keys())
        total -= sum(size for digest, size in blobs[entry.info.name].items() if uses[digest] == 0)
    reason = f"{whose}{OVER_BUDGET}{budget}"
    made = [
        replace(entry, keep=False, reasons=(reason,), relied_on=False) if entry.info.name in gone else entry
        for entry in entries
    ]
    left = f"{whose} stays above its budget of {budget}: what is never dropped takes {size_text(total)}"
    return Budgeted(made, [left] if total > budget.most else [])


def _is_best(entry: PlanEntry) -> bool:
    return any(_BEST_REASON.search(reason) for reason in entry.reasons)


OVER_BUDGET = " is above its budget of "
LACKS_METRIC = "it has no metric "
"""How the reason begins for one that a rule by a metric could not judge."""
Verdict = tuple[Candidate, bool, str]
"""A checkpoint, whether a rule keeps it, and why."""
_BEST_REASON = re.compile(r" best by .* \((?:min|max)\)\Z")


class _Run:
    """The plan for one run: rules add reasons to keep, and reasons why they do not keep."""

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
        # Before any rule: what protects is the same whatever the policy says.
        self._protect()
        self._protected = {name for name, reasons in self._kept.items() if reasons}
        if policy is None or not policy.has_keep_rule:
            self._keep_all(policy)
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
                self._spread(unit, count)
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

    def _keep_all(self, policy: RetentionPolicy | None) -> None:
        why = "no rule of the store is for its run" if policy is None else "the run is within its budget"
        for candidate in self._history:
            self._kept[candidate.info.name].append(why)

    def _nearest(self, every: int) -> None:
        groups: dict[int, list[Candidate]] = {}
        for candidate in self._history:
            # Each belongs to its nearest multiple alone: what is kept now is not dropped for a later save farther off.
            groups.setdefault((candidate.info.step + (every - 1) // 2) // every, []).append(candidate)
        for multiple, group in groups.items():
            group.sort(key=lambda c: abs(c.info.step - multiple * every))  # stable: of equal ones the newer comes first
            self._first(group, 1, f"nearest to step {multiple * every}")

    def _spread(self, unit: str, count: int) -> None:
        """Keep the newest valid one of each of the newest `count` hours, days or weeks that have one."""
        self._twice(self._history, lambda ordered: self._newest_of_each(ordered, unit, count))

    def _newest_of_each(self, ordered: Sequence[Candidate], unit: str, count: int) -> Iterator[Verdict]:
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
        """Apply a rule that counts to the healthy ones, and to all of them for those that are not."""
        # What it keeps of the healthy ones is what it would keep if there were no others; so twice as many are kept at
        # most, for as long as a training that has diverged is saved.
        healthy = [candidate for candidate in ordered if candidate.healthy]
        for candidate, keep, reason in rule(healthy):
            self._note(candidate, reason, keep=keep)
        for candidate, keep, reason in rule(ordered) if len(healthy) < len(ordered) else ():
            if not candidate.healthy:
                self._note(candidate, f"{reason}; it is unhealthy, and takes no healthy one's place", keep=keep)

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
        # The one that a resume loads: a policy that dropped it would end the run.
        newest = next((c for c in self._history if c.valid), None)
        if newest is not None:
            self._note(newest, f"it is the newest valid checkpoint of the run {newest.info.run}", keep=True)
            healthy = next((c for c in self._history if c.valid and c.healthy), newest)
            if healthy is not newest:
                self._note(healthy, f"it is the newest healthy checkpoint of the run {newest.info.run}", keep=True)
            return
        # No checkpoint is valid: whatever bytes are left may be all that can be rescued of the run.
        for candidate in self._history:
            self._kept[candidate.info.name].append(f"no checkpoint of the run {candidate.info.run} is valid")

    def _first(self, ordered: Sequence[Candidate], count: int, of: str) -> None:
        """Keep the first `count` valid ones, and the damaged ones before the last of them."""
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
        # Without nan, which compares as neither: one in the list would leave it unsorted.
        ranked.sort(key=lambda c: sign * c.info.metrics[best.metric])  # stable: of equal ones the newer comes first
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
        # Misspelt or not logged yet: dropping by a metric that no checkpoint has would drop all but the newest.
        if not ranked:
            self._keep_unjudged(best.metric)
        elif not any(c.healthy for c in ranked):  # the same, but unhealthy ones do not pile up meanwhile
            for candidate in self._history:
                if candidate.healthy:
                    reason = f"no healthy checkpoint has a number for the metric {best.metric}"
                    self._note(candidate, reason, keep=True)

    def _keep_unjudged(self, metric: str) -> None:
        """Keep everything: a rule that no checkpoint can be judged by may be misspelt."""
        lacking = f"no checkpoint of the run {self._history[0].info.run} has a number for the metric {metric}"
        but = " but by the budget" if self._budget is not None else ""
        metrics = metrics_there((candidate.info.metrics for candidate in self._history), metric)
        for candidate in self._history:
            self._kept[candidate.info.name].append(lacking)
        self.notes.append(f"{lacking}, so nothing of it is dropped{but}; {metrics}")

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
            damaged = f"does not count, since it is damaged: {candidate.damage}"
            yield candidate, True, f"it is among the {of}, but {damaged}"


def _start_of(unit: str, time: datetime) -> tuple[int, ...]:
    """Return what is the same for all times in one hour, day or week of UTC."""
    utc = time.astimezone(UTC)
    if unit == "week":
        return utc.isocalendar()[:2]
    day = (utc.year, utc.month, utc.day)
    return (*day, utc.hour) if unit == "hour" else day
