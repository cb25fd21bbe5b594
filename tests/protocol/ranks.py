"""The model of several ranks that meet in a directory and write one checkpoint, as `ckstore.ranks` has it.

Each rank stages its part in a staging directory of its own. One at a time, by the lock on ``join/``, decides: it joins
the parts and renames the whole to its name, or gives up. The first ``outcome.json`` counts. A rank may die or stand
still at each step, and another start of the job may save the step to replace, before or after. With two hosts, whose
locks do not reach each other, one rank of each decides at a time, and who publishes has the hidden name of the step
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.search import Explored, Step, explore
from tests.protocol.switches import Switches

_SAVE = "ranks.save._save"
_PART = "ranks.file_rendezvous.FileRendezvous.say_part"
_FAIL = "ranks.decide.Coordinator.fail"
_GIVES_UP = "ranks.work.RankWork._end_now"
_LOCK = "ranks.file_rendezvous.FileRendezvous.deciding"
_DECIDE = "ranks.decide.Coordinator._decide_alone"
_LOST = "ranks.outcome.lost"
_STAGE = "ranks.merged_checkpoint.MergedCheckpoint.publish"
_PUBLISHING = "ranks.file_rendezvous.FileRendezvous.say_publishing"
_LINK = "ranks.merged_checkpoint.MergedCheckpoint._link_parts"
_HIDE = "objects.publish._hide"
_TAKE_AWAY = "objects.publish._took_away"
_TAKE_HIDDEN = "ranks.outcome.take_hidden"
_RENAME = "objects.publish.give_name"
_SYNC = "objects.publish.sync_parents"
_DROP = "ops.free.drop.drop"
_OUTCOME = "ranks.file_rendezvous.FileRendezvous.say_outcome"
_COMMITTED = "ranks.decide.Coordinator._committed"
_ENDED = "ranks.decide.Coordinator._ended"
_FENCE = "ranks.file_rendezvous.FileRendezvous.fence"
_MOVE = "ranks.decide.Coordinator._stop_publishers"
_GIVE_UP = "ranks.decide.Coordinator._give_up"
_PUBLISHED = "ranks.decide.Coordinator._published"
_SWEEP = "objects.trash.sweep_staging"

_NO_LOCKS = (-1, -1)
_OURS, _OTHER = "this try", "another try"
_NEWER, _DROPPED = "another try, which supersedes this one", "another try, which has dropped this one"
_AGAIN = "this try, which supersedes a newer one"


@dataclass(frozen=True, slots=True)
class RankRules(Switches):
    """Bounds, and which rules the modelled code keeps."""

    ranks: int = 2
    hosts: int = 1
    deaths: int = 1
    replaced: bool = True
    decides_alone: bool = True  # FileRendezvous.deciding: one rank at a time has the lock
    all_parts: bool = True  # Coordinator._decide_alone: without all parts it gives up
    looks_first: bool = True  # the same: whether a rank that died has published
    syncs_itself: bool = True  # Coordinator._published: the rename of another rank is made durable
    outcome_has_info: bool = True  # outcome.published: what was published, not where
    first_counts: bool = True  # Coordinator._committed: the outcome that was said first
    fences: bool = True  # Coordinator._give_up: before it gives up a rank that has the lock
    fences_hosts: bool = True  # the same: before any failure is said, if locks do not reach the other hosts
    takes_hidden: bool = True  # Coordinator._stop_publishers: what has the hidden name is moved away as well
    fence_first: bool = True  # FileRendezvous.fence: the fence is written, then what is being published is read
    sees_fence: bool = (
        True  # FileRendezvous.say_publishing: it is written what is published, then the fence is looked for
    )
    looks_for_lost: bool = True  # outcome.lost: whether a rank that died has published what was dropped since
    spares_hidden: bool = True  # the same: what has the hidden name is not lost
    stops: bool = True  # RankWork.doing: a thread whose caller has given up says nothing more


class Rank(NamedTuple):
    """One rank.

    Attributes:
        doing: What it does next.
        told: What its caller was told: ``failed``, or whose checkpoint it got; empty: nothing yet.
        part: Whether its part lies in staging.
        whole: Where its staging of the whole is: none ``-``, staging ``S``, under the hidden name ``H``, trash ``X``,
            published ``P``.
        saw: The ranks that it saw publishing, as bits.
    """

    doing: str = "new"
    told: str = ""
    part: bool = False
    whole: str = "-"
    saw: int = 0


class Job(NamedTuple):
    """One state.

    Attributes:
        ranks: The ranks.
        came, said, failed, publishing: Whose documents of each kind are there, as bits.
        fence: Whether that document is there.
        outcome: ``ok``, ``failed``, or empty.
        locks: Who decides, on each host.
        wronged: Whether a try in which nothing failed was given up.
        place: Whose checkpoint the step shows; empty: there is none.
        durable: Whether the rename of ours is.
        joined: Whose parts are in ours, as bits.
        deaths: How many may still die.
        replaced: Whether another try has saved the step to replace, before or after ours.
    """

    ranks: tuple[Rank, ...]
    came: int = 0
    said: int = 0
    failed: int = 0
    publishing: int = 0
    fence: bool = False
    outcome: str = ""
    locks: tuple[int, ...] = _NO_LOCKS
    wronged: bool = False
    place: str = ""
    durable: bool = False
    joined: int = 0
    deaths: int = 0
    replaced: bool = False

    def of(self, number: int, doing: str, **changed: object) -> Job:
        """Return the state in which a rank goes on."""
        rank = self.ranks[number]._replace(doing=doing, **changed)  # type: ignore[arg-type]
        return self._replace(ranks=(*self.ranks[:number], rank, *self.ranks[number + 1 :]))

    def ends(self, outcome: str) -> Job:
        """Return the state in which an outcome was said; the first counts."""
        return self._replace(outcome=self.outcome or outcome)

    def is_there(self) -> bool:
        """Whether the checkpoint of this try is published: it is found by its manifest, superseded or not."""
        return self.place in (_OURS, _NEWER)

    def unlocked(self, number: int) -> Job:
        """Return the state in which a rank does not have the lock."""
        return self._replace(locks=tuple(-1 if holder == number else holder for holder in self.locks))


class RankModel:
    """The model under some rules."""

    def __init__(self, rules: RankRules) -> None:
        self._rules = rules
        self._all = 2**rules.ranks - 1

    def explore(self) -> Explored:
        """Look at every state."""
        start = Job((Rank(),) * self._rules.ranks, deaths=self._rules.deaths)
        return explore(start, lambda job: list(self.steps(job)), self.wrong)

    def wrong(self, job: Job) -> str:
        """Return what is bad in this state."""
        told = {rank.told for rank in job.ranks}
        if told & {_OTHER, _NEWER, _DROPPED}:
            return "a rank was told of a checkpoint that its try did not make"
        if "failed" in told and (_OURS in told or job.is_there()):
            return "a rank was told that the save failed, and it is there"
        if _OURS in told and not job.durable:
            return "a rank was told of a checkpoint that a power cut may take"
        if job.is_there() and job.joined != self._all:
            return "it was published without all parts"
        if job.wronged:
            return "a try was given up while a rank was publishing it"
        if job.place == _AGAIN:
            return "the older try supersedes the newer one"
        return ""

    def steps(self, job: Job) -> Iterator[Step[Job]]:
        """Yield everything that may happen next."""
        for number, rank in enumerate(job.ranks):
            who = f"rank {number}"
            steps = {
                "new": self._comes,
                "came": self._stages,
                "fails": self._fails,
                "waits": self._waits,
                "decides": self._decides,
                "gives up": self._gives_up,
                "says so": self._says_that_it_failed,
                "finds it": self._finds_it,
                "joins": self._joins,
                "joined": self._links,
                "sealed": self._hides if self._rules.hosts > 1 else self._renames,
                "hidden": self._renames,
                "renamed": self._syncs,
                "synced": self._commits,
                "follows": self._follows,
                "fences": self._reads_fenced,
                "moves": self._moves,
                "takes hidden": self._takes_hidden,
                "looks": self._looks,
            }.get(rank.doing)
            if steps is not None:
                yield from steps(job, number, who)
                if job.deaths and rank.doing != "new":
                    died = job.of(number, "dead").unlocked(number)
                    yield Step(who, "", "dies", died._replace(deaths=job.deaths - 1))
            elif rank.doing == "dead" and (rank.part or rank.whole == "S"):
                whole = "X" if rank.whole == "S" else rank.whole
                yield Step(who, _SWEEP, "what it staged is swept", job.of(number, "dead", part=False, whole=whole))
        if self._rules.replaced and not job.replaced:
            # It syncs the same directories before it ends.
            durable = job.durable or job.place == _OURS
            place = _NEWER if job.place == _OURS else _OTHER
            yield Step("another try", "", "saves it", job._replace(place=place, durable=durable, replaced=True))
        if job.place == _NEWER:  # also while a rank of another host, whose locks are not seen, has it in use
            yield Step("another try", _DROP, "drops this one, or gc does", job._replace(place=_DROPPED))

    # ------------------------------------------------------------------ until its part is staged

    def _comes(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        yield Step(who, _SAVE, "comes", job.of(number, "came")._replace(came=job.came | 1 << number))

    def _stages(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        said = job.said | 1 << number
        yield Step(who, _PART, "says that its part is staged", job.of(number, "waits", part=True)._replace(said=said))
        if not job.ranks[number].told:
            yield Step(who, _FAIL, "cannot stage its part", job.of(number, "fails"))
            stopped = job.of(number, "fails" if self._rules.stops else "came", told="failed")
            yield Step(who, _GIVES_UP, "its disk hangs: the caller is told", stopped)

    def _fails(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        ended = job.of(number, "end", told="failed")._replace(failed=job.failed | 1 << number)
        yield Step(who, _FAIL, "says why", ended)

    # ------------------------------------------------------------------ deciding

    def _waits(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        if job.outcome:
            yield self._ends(job, number, who)
            return
        host = number % self._rules.hosts
        if job.locks[host] < 0 or not self._rules.decides_alone:
            locks = tuple(number if place == host else holder for place, holder in enumerate(job.locks))
            yield Step(who, _LOCK, "locks the others out", job.of(number, "decides")._replace(locks=locks))
        elif not self._rules.fences:
            yield Step(who, _MOVE, "is late and gives up", job.of(number, "end", told="failed", part=False))
        elif self._rules.fence_first:
            yield Step(who, _FENCE, "is late: writes the fence", job.of(number, "fences")._replace(fence=True))
        else:
            yield Step(who, _FENCE, "is late: reads who publishes", job.of(number, "fences", saw=job.publishing))

    def _ends(self, job: Job, number: int, who: str) -> Step[Job]:
        told = "failed" if job.outcome == "failed" else _OURS if self._rules.outcome_has_info else job.place or "failed"
        return Step(who, _ENDED, "reads the outcome", job.of(number, "end", told=told, part=False).unlocked(number))

    def _decides(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        if job.outcome:
            yield Step(who, _DECIDE, "finds an outcome", job.of(number, "waits").unlocked(number))
        elif job.is_there() and self._rules.looks_first:
            yield Step(who, _PUBLISHED, "finds it published", job.of(number, "finds it"))
        elif self._rules.looks_for_lost and any(
            job.publishing >> other & 1 and not self._is_unpublished(rank) for other, rank in enumerate(job.ranks)
        ):
            hides = any(rank.whole == "H" and rank.doing == "hidden" for rank in job.ranks)
            wronged = hides and not job.fence and all(rank.doing != "dead" for rank in job.ranks)
            gives_up = job.of(number, "gives up")._replace(wronged=wronged)
            yield Step(who, _LOST, "finds that a rank may have published it", gives_up)
        elif job.failed or (job.said != self._all and self._rules.all_parts):
            yield Step(who, _DECIDE, "finds that one failed or is missing", job.of(number, "gives up"))
        else:
            yield Step(who, _STAGE, "stages the whole", job.of(number, "joins", whole="S"))

    def _is_unpublished(self, rank: Rank) -> bool:
        return rank.whole == "S" or (rank.whole == "H" and self._rules.spares_hidden)

    def _gives_up(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        if self._rules.hosts > 1 and self._rules.fences_hosts:
            yield Step(who, _GIVE_UP, "writes the fence", job.of(number, "fences")._replace(fence=True))
        else:
            yield from self._says_that_it_failed(job, number, who)

    def _says_that_it_failed(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        ended = job.ends("failed").of(number, "waits").unlocked(number)
        yield Step(who, _OUTCOME, "says that it failed", ended)

    def _finds_it(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        ended = job.ends("ok").of(number, "waits").unlocked(number)
        durable = job.durable or self._rules.syncs_itself
        yield Step(who, _OUTCOME, "makes it durable and says so", ended._replace(durable=durable))

    # ------------------------------------------------------------------ publishing

    def _joins(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        publishing = job.publishing | 1 << number
        said = job.of(number, "joined")._replace(publishing=publishing)
        yield Step(who, _PUBLISHING, "says what it is about to publish", said)

    def _links(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        if job.fence and self._rules.sees_fence:
            yield Step(who, _PUBLISHING, "sees the fence", job.of(number, "gives up"))
            return
        there = sum(1 << other for other, rank in enumerate(job.ranks) if rank.part)
        if there & job.said != job.said:
            yield Step(who, _LINK, "a part is gone", job.of(number, "gives up"))
        else:
            yield Step(who, _LINK, "links the parts", job.of(number, "sealed")._replace(joined=job.said))

    def _hides(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        hiding = [other for other, rank in enumerate(job.ranks) if rank.whole == "H"]
        if job.ranks[number].whole != "S":
            yield Step(who, _HIDE, "its staging was moved away", job.of(number, "gives up"))
        elif hiding:
            other = hiding[0]
            taken = job.of(other, job.ranks[other].doing, whole="X")
            yield Step(who, _TAKE_AWAY, "takes away what has the hidden name for long", taken)
        else:
            yield Step(who, _HIDE, "takes the hidden name", job.of(number, "hidden", whole="H"))

    def _renames(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        if job.ranks[number].whole not in ("S", "H"):
            yield Step(who, _RENAME, "its staging was moved away", job.of(number, "gives up"))
        elif job.is_there():
            yield Step(who, _RENAME, "the same is there", job.of(number, "renamed", whole="S"))
        else:
            place = _AGAIN if job.place == _DROPPED else _OURS
            renamed = job.of(number, "renamed", whole="P")._replace(place=place, durable=False)
            yield Step(who, _RENAME, "renames it to its name", renamed)

    def _syncs(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        yield Step(who, _SYNC, "makes that durable", job.of(number, "synced")._replace(durable=True))

    def _commits(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        yield Step(who, _COMMITTED, "says that it is published", job.ends("ok").of(number, "follows"))

    def _follows(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        if self._rules.first_counts:
            yield self._ends(job, number, who)
        else:
            told = job.of(number, "end", told=_OURS, part=False).unlocked(number)
            yield Step(who, _ENDED, "returns what it published", told)

    # ------------------------------------------------------------------ fencing a rank that stands still

    def _reads_fenced(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        if self._rules.fence_first:
            yield Step(who, _FENCE, "reads who publishes", job.of(number, "moves", saw=job.publishing))
        else:
            yield Step(who, _FENCE, "writes the fence", job.of(number, "moves")._replace(fence=True))

    def _moves(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        after = job
        for other, rank in enumerate(job.ranks):
            if job.ranks[number].saw >> other & 1 and rank.whole == "S":
                after = after.of(other, rank.doing, whole="X")
        yield Step(who, _MOVE, "moves that away", after.of(number, "takes hidden"))

    def _takes_hidden(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        after = job
        for other, rank in enumerate(job.ranks):
            if rank.whole == "H" and self._rules.takes_hidden:
                after = after.of(other, rank.doing, whole="X")
        yield Step(who, _TAKE_HIDDEN, "moves away what has the hidden name", after.of(number, "looks"))

    def _looks(self, job: Job, number: int, who: str) -> Iterator[Step[Job]]:
        then = "finds it" if job.is_there() else "says so"
        yield Step(who, _PUBLISHED, "looks whether it is published", job.of(number, then))
