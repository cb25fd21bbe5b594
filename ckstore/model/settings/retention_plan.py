"""Retention: which checkpoints are kept, and why. Values in, a plan out; no files and no clock.

A policy has up to four rules. Each is applied to each run by itself, and what any rule keeps is kept. Whatever the
policy says, these are never dropped: what a tag or an unexpired pin names, what a process has open, and the newest
valid checkpoint of each run (so of the store, too). Order is the order of commits, never the step, the name or the
clock: after training was resumed from an older step, or a run was begun again in the same store, the newest is what
was saved last. A clock matters to `keep_within` alone.

A damaged checkpoint never takes the place of a whole one: `keep_last=3` goes back until it has three valid ones, and
keeps what it met on the way. A metric that no checkpoint of a run has a number for keeps the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ckstore.model.brief import brief
from ckstore.model.settings.retention import Best, RetentionPolicy, metrics_there
from ckstore.model.times import duration_s, time_of_text
from ckstore.model.words import counted, first_of, in_lines, printable

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint and what counts for its fate.

    Attributes:
        info: What the store says about it; its `order` and its metrics count.
        tags: Tags that name it.
        pins: What to say of each unexpired pin that names it.
        in_use: Whether a process has it open.
        damage: What is wrong with it (a missing or touched blob, a mark of a read or a verify); empty: it is valid.
        doubt: Why its metrics cannot be known; then it is kept.
    """

    info: CheckpointInfo
    tags: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    in_use: bool = False
    damage: str = ""
    doubt: str = ""

    @property
    def valid(self) -> bool:
        """Whether it is complete and nothing is known to be wrong with it."""
        return not self.damage


@brief()
@dataclass(frozen=True, slots=True)
class PlanEntry:
    """What becomes of one checkpoint.

    Attributes:
        info: Which.
        keep: Whether it stays.
        reasons: All reasons for it.
        relied_on: Whether the plan counts on its being valid.
    """

    info: CheckpointInfo
    keep: bool
    reasons: tuple[str, ...]
    relied_on: bool = False

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
        policy: The policy.
        now: The time that it was made for.
        entries: Every checkpoint that was looked at, by run and then in the order of commits.
        notes: What the user may not expect, one sentence each.
        shown_only: The manifests of what it drops were not read, so that it cannot be applied.
    """

    policy: RetentionPolicy
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


def plan(policy: RetentionPolicy, history: Sequence[Candidate], now: datetime) -> RetentionPlan:
    """Say for each checkpoint whether it is kept or dropped, and why.

    The order of `history` does not matter; the same arguments give the same plan.

    Args:
        policy: The rules.
        history: All checkpoints of each run that is to be looked at; a run that is left out is left alone.
        now: With a time zone; only `keep_within` looks at it.
    """
    entries: list[PlanEntry] = []
    notes: list[str] = []
    for run in sorted({candidate.info.run for candidate in history}):
        # By order of commits: after a resume from an older step the newest may have a smaller step or an older clock.
        newest_first = sorted((c for c in history if c.info.run == run), key=lambda c: c.info.order, reverse=True)
        planned = _Run(policy, newest_first, now)
        entries += planned.entries()
        notes += planned.notes
    return RetentionPlan(policy=policy, now=now, entries=tuple(entries), notes=tuple(notes))


class _Run:
    """The plan for one run: rules add reasons to keep, and reasons why they do not keep."""

    def __init__(self, policy: RetentionPolicy, newest_first: Sequence[Candidate], now: datetime) -> None:
        self.notes: list[str] = []
        self._history = newest_first
        self._kept: dict[str, list[str]] = {c.info.name: [] for c in newest_first}
        self._not_kept: dict[str, list[str]] = {c.info.name: [] for c in newest_first}
        self._relied_on: set[str] = set()
        # Before any rule: what protects is the same whatever the policy says.
        self._protect()
        if policy.keep_last is not None:
            of = f"{policy.keep_last} newest" if policy.keep_last > 1 else "newest"
            self._first(newest_first, policy.keep_last, of)
        if policy.keep_every is not None:
            self._every(policy.keep_every)
        for best in policy.bests:
            self._best(best)
        if policy.keep_within is not None:
            self._within(policy.keep_within, now)

    def entries(self) -> list[PlanEntry]:
        made = []
        for candidate in reversed(self._history):
            name = candidate.info.name
            kept = self._kept[name]
            reasons = tuple(dict.fromkeys(kept or self._not_kept[name]))
            made.append(PlanEntry(candidate.info, bool(kept), reasons, name in self._relied_on))
        return made

    def _protect(self) -> None:
        for candidate in self._history:
            kept = self._kept[candidate.info.name]
            kept += [f"it has the tag {tag}" for tag in candidate.tags]
            kept += [f"it is pinned: {pin}" for pin in candidate.pins]
            kept += ["it is open for reading"] if candidate.in_use else []
            kept += [candidate.doubt] if candidate.doubt else []
        # The one that a resume loads: a policy that dropped it would end the run.
        newest = next((c for c in self._history if c.valid), None)
        if newest is not None:
            self._kept[newest.info.name].append(f"it is the newest valid checkpoint of the run {newest.info.run}")
            self._relied_on.add(newest.info.name)
            return
        # No checkpoint is valid: whatever bytes are left may be all that can be rescued of the run.
        for candidate in self._history:
            self._kept[candidate.info.name].append(f"no checkpoint of the run {candidate.info.run} is valid")

    def _first(self, ordered: Sequence[Candidate], count: int, of: str) -> None:
        """Keep the first `count` valid ones, and the damaged ones before the last of them."""
        found = 0
        for candidate in ordered:
            name = candidate.info.name
            if found == count:
                self._not_kept[name].append(f"it is not {'among ' if count > 1 else ''}the {of}")
            elif candidate.valid:
                found += 1
                self._kept[name].append(f"it is {'one of ' if count > 1 else ''}the {of}")
                self._relied_on.add(name)
            else:
                self._kept[name].append(
                    f"it is among the {of}, but does not count, since it is damaged: {candidate.damage}"
                )

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
        self._first(ranked, best.n, str(best))
        for candidate in self._history:
            if best.metric not in candidate.info.metrics:
                self._not_kept[candidate.info.name].append(f"it has no metric {best.metric}")
            elif math.isnan(candidate.info.metrics[best.metric]):
                self._not_kept[candidate.info.name].append(f"its {best.metric} is nan")
        # Misspelt or not logged yet: dropping by a metric that no checkpoint has would drop all but the newest.
        if not ranked:
            self._keep_unjudged(best.metric)

    def _keep_unjudged(self, metric: str) -> None:
        """Keep everything: a rule that no checkpoint can be judged by may be misspelt."""
        lacking = f"no checkpoint of the run {self._history[0].info.run} has a number for the metric {metric}"
        metrics = metrics_there((candidate.info.metrics for candidate in self._history), metric)
        for candidate in self._history:
            self._kept[candidate.info.name].append(lacking)
        self.notes.append(f"{lacking}, so nothing of it is dropped; {metrics}")

    def _within(self, within: str | float, now: datetime) -> None:
        text = within if isinstance(within, str) else f"{within} s"
        seconds = duration_s(within, "keep_within")
        for candidate in self._history:
            age_s = (now - time_of_text(candidate.info.created)).total_seconds()
            if age_s <= seconds:
                self._kept[candidate.info.name].append(f"it was saved in the last {text}")
            else:
                self._not_kept[candidate.info.name].append(f"it is older than {text}")
