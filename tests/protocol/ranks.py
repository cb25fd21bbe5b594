"""The model of several ranks that write one checkpoint, as the design has it; there is no code for it yet.

Each rank places its part in one staging directory. A rank that sees all parts links the global manifest and publishes
by a rename; a rank that gives up aborts by a rename of the same directory: exactly one of the two happens, for all
ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.protocol.search import Explored, Step, explore

Part = tuple[int, int]
"""Rank and attempt that wrote it."""


@dataclass(frozen=True, slots=True)
class RankRules:
    """Bounds, and which rules are kept.

    Attributes:
        ranks, attempts, deaths: How many.
        abort_renames: Giving up is a rename of the staging directory, not only a report.
        attempt_in_name: Each attempt has a staging directory of its own.
    """

    ranks: int = 2
    attempts: int = 2
    deaths: int = 2
    abort_renames: bool = True
    attempt_in_name: bool = True

    def without(self, *names: str) -> RankRules:
        """Return the same rules but these."""
        return replace(self, **dict.fromkeys(names, False))


class Directory(NamedTuple):
    """A directory: in staging ``S``, published ``P`` or in trash ``X``; its parts; whether it has a manifest."""

    where: str = "S"
    parts: frozenset[Part] = frozenset()
    sealed: bool = False


class Job(NamedTuple):
    """One state.

    Attributes:
        directories: One for each attempt, or one for all.
        doing: For each attempt and rank: ``new``, ``write``, ``placed``, ``ok``, ``failed``, ``dead``.
        deaths: How many may still die.
        published: The parts of what was published.
    """

    directories: tuple[Directory, ...]
    doing: tuple[tuple[str, ...], ...]
    deaths: int
    published: frozenset[Part] | None = None


class RankModel:
    """The model under some rules."""

    def __init__(self, rules: RankRules) -> None:
        self._rules = rules

    def explore(self) -> Explored:
        """Look at every state."""
        rules = self._rules
        directories = (Directory(),) * (rules.attempts if rules.attempt_in_name else 1)
        doing = tuple(("new" if attempt else "write",) * rules.ranks for attempt in range(rules.attempts))
        return explore(Job(directories, doing, rules.deaths), lambda job: list(self.steps(job)), self.wrong)

    def wrong(self, job: Job) -> str:
        """Return what is bad in this state."""
        if any("ok" in told and "failed" in told for told in job.doing):
            return "one rank was told success, another of the same attempt failure"
        if job.published is None:
            return ""
        if {rank for rank, _ in job.published} != set(range(self._rules.ranks)):
            return "it was published without all parts"
        return "parts of two attempts were published" if len({by for _, by in job.published}) > 1 else ""

    def steps(self, job: Job) -> Iterator[Step[Job]]:
        """Yield everything that may happen next."""
        for attempt in range(self._rules.attempts):
            for rank in range(self._rules.ranks):
                doing = job.doing[attempt][rank]
                who = f"rank {rank} of attempt {attempt + 1}"
                if doing == "new" and self._may_start(job, attempt, rank):
                    yield Step(who, "", "starts", _told(job, attempt, rank, "write"))
                elif doing == "write":
                    yield self._places(job, attempt, rank, who)
                elif doing == "placed":
                    yield from self._waits(job, attempt, rank, who)
                if doing in ("write", "placed") and job.deaths:
                    died = _told(job, attempt, rank, "dead")
                    yield Step(who, "", "dies", died._replace(deaths=job.deaths - 1))

    def _may_start(self, job: Job, attempt: int, rank: int) -> bool:
        before = job.doing[attempt - 1]
        return all(told in ("dead", "failed") for told in before[: rank + 1]) and "dead" in before

    def _key(self, attempt: int) -> int:
        return attempt if self._rules.attempt_in_name else 0

    def _places(self, job: Job, attempt: int, rank: int, who: str) -> Step[Job]:
        key = self._key(attempt)
        there = job.directories[key]
        if there.where == "P":
            mine = job.published is not None and (rank, attempt) in job.published
            return Step(who, "", "finds it published", _told(job, attempt, rank, "ok" if mine else "failed"))
        if there.where == "X":
            return Step(who, "", "finds staging gone", _told(job, attempt, rank, "failed"))
        parts = there.parts if rank in {by for by, _ in there.parts} else there.parts | {(rank, attempt)}
        placed = _told(job, attempt, rank, "placed")
        return Step(who, "", "places its part", _put(placed, key, there._replace(parts=parts)))

    def _waits(self, job: Job, attempt: int, rank: int, who: str) -> Iterator[Step[Job]]:
        key = self._key(attempt)
        there = job.directories[key]
        if there.where == "P":
            yield Step(who, "", "sees it published", _told(job, attempt, rank, "ok"))
            return
        if there.where == "X":
            yield Step(who, "", "sees it aborted", _told(job, attempt, rank, "failed"))
            return
        if len(there.parts) == self._rules.ranks and not there.sealed:
            yield Step(who, "", "links the global manifest", _put(job, key, there._replace(sealed=True)))
        if there.sealed and job.published is None:
            done = _told(job, attempt, rank, "ok")._replace(published=there.parts)
            yield Step(who, "", "renames it into place", _put(done, key, there._replace(where="P")))
        elif there.sealed:
            failed = _told(job, attempt, rank, "failed")
            yield Step(who, "", "finds another published", _put(failed, key, there._replace(where="X")))
        failed = _told(job, attempt, rank, "failed")
        if self._rules.abort_renames:
            failed = _put(failed, key, there._replace(where="X"))
        yield Step(who, "", "gives up", failed)


def _told(job: Job, attempt: int, rank: int, what: str) -> Job:
    doing = [list(told) for told in job.doing]
    doing[attempt][rank] = what
    return job._replace(doing=tuple(map(tuple, doing)))


def _put(job: Job, key: int, there: Directory) -> Job:
    return job._replace(directories=(*job.directories[:key], there, *job.directories[key + 1 :]))
