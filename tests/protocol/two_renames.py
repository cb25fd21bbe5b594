"""Two hosts, and no exchange of names: a checkpoint K is replaced by two renames, with a gap between them.

Saver A works on host 1; saver B, retention R, and the collector G on host 2. What a host sees of the locks of the other
is `cluster`: all, or nothing; then only host 1 writes to the run. Names are seen at once, since all acts here are
renames, which the server judges. A *tick* is the time of the grace: what no process touched since the last one has
waited. A process may stand still in the gap for longer than that; until then its staging is written to.

The server may crash and forget renames that were not made durable; all who are in the middle of something get errors,
and their locks are gone. *Ordered*: it has kept all renames until some moment since the last fsync. *Weak*: of each
checkpoint, whichever place it had since one of the two directories of a rename of it was fsynced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tests.protocol.search import Explored, Step, explore

_LOCK = "objects.store_locks.lock_run"
_CHECK = "fs.locks.DirectoryLock.check"
_RENAMED = "objects.publish._renamed"
_COMPLETE_RUN = "objects.shared.two_renames.complete_run"
_KEEP = "objects.publish.existing_to_keep"
_REPLACE = "objects.shared.two_renames.replace"
_GO_BACK = "objects.shared.two_renames._go_back"
_SYNC = "objects.publish._sync"
_DISCARD = "ops.free.reclaim.discard"
_FILL = "ops.refs.listing.fill_dead"
_SWEEP = "objects.trash.sweep_staging"
_BURY = "ops.free.drop._bury"
_DROP = "ops.free.drop.drop"
_NAMES = "KAB"
_LOSSES = 1
_OVER = ("end", "failed", "unknown", "dead")
_IDLE = ("new", *_OVER)
_FOLDERS = {"P": "run", "X": "trash"}
"""In which directory a place is, if not in ``staging/``."""
_ALL = frozenset({"run", "staging", "trash"})
Mode = Literal["", "ordered", "weak"]
"""What a server that crashes forgets; empty: it does not crash."""


@dataclass(frozen=True, slots=True)
class ReplaceRules:
    """Which rules the modelled code keeps, and what the hosts see of each other."""

    cluster: bool = True
    locked: bool = True  # publish._publish: who replaces has the run alone, on all hosts
    checked: bool = True  # DirectoryLock.check: a lock that was lost is found out before the first rename
    marked: bool = True  # LockFile.check: also if it is free now, and another one had it meanwhile
    gap_is_taken: bool = True  # publish._publish: a place that is empty because of a gap is not free
    completed_first: bool = True  # two_renames.complete_run: who has the run alone completes before it judges
    grace_of_gaps: bool = True  # gaps.fill_dead: what a host left half replaced waits for the grace
    new_is_needed: bool = True  # two_renames.unswept: neither checkpoint of a gap is dead
    grace_of_stagings: bool = True  # trash.sweep_staging: the locks of other hosts are not seen
    checked_before_burying: bool = True  # drop.drop: that it was lost is found out before what was replaced goes, too
    renamed_first: bool = True  # two_renames.replace: what an earlier replacement left names no successor any more
    buried: bool = True  # drop._bury: what was replaced goes before what replaced it
    sync_published: bool = True  # publish._sync: the rename before the acknowledgement
    sync_dropped: bool = True  # drop.drop: the rename before the user is told
    sync_buried: bool = True  # drop._bury: that before the checkpoint that took its place is dropped
    sync_staging: bool = (
        True  # two_renames.replace: what names no successor any more, before the old one leaves its place
    )
    sync_swept: bool = True  # trash.sweep_staging: what replaced it, before what was replaced goes

    def without(self, *names: str) -> ReplaceRules:
        """Return the same rules but these."""
        return replace(self, **dict.fromkeys(names, False))


class Run(NamedTuple):
    """One state.

    Attributes:
        where: For K, A and B: ``P`` published, ``S`` in staging, ``a`` or ``b`` there as what A or B replaces, ``o`` as
            what was replaced before that, ``X`` in trash, ``-`` nowhere.
        doing: What A, B and R do next.
        lock: Who has the run alone, as the server knows; empty: no process.
        young: What was touched since the last tick.
        told: The last of which its saver was told that it is there, or ``-``: that it was dropped.
        refused: Whose saver was told that nothing was changed.
        mark: Who had it alone last, as the file of the lock says.
        misjudged: Whether an actor moved another checkpoint than the one that it had judged.
        ticks, kills, losses, crashes: How often these may still happen.
        mode: What a server that crashes forgets.
        kept: As `where`: each of what may be there after it crashed; empty where it does not any more.
    """

    where: str = "PSS"
    doing: tuple[str, str, str] = ("new", "new", "new")
    lock: str = ""
    young: frozenset[str] = frozenset("AB")
    told: str = "K"
    refused: frozenset[str] = frozenset()
    mark: str = ""
    misjudged: bool = False
    ticks: int = 1
    kills: int = 1
    losses: int = _LOSSES
    crashes: int = 0
    mode: Mode = ""
    kept: frozenset[str] = frozenset()

    def of(self, x: str) -> str:
        """Return where a checkpoint is."""
        return self.where[_NAMES.index(x)]

    def there(self) -> str:
        """Return what is published; empty: nothing."""
        return next((x for x in _NAMES if self.of(x) == "P"), "")

    def put(self, x: str, place: str) -> Run:
        """Return the state after a rename."""
        where = _put(self.where, x, place)
        kept = self.kept and self.kept | {where}
        if self.kept and self.mode == "weak":
            kept |= {moved for one in self.kept if (moved := _put(one, x, place)).count("P") <= 1}
        return self._replace(where=where, young=self.young | {x}, kept=kept)

    def synced(self, folders: frozenset[str] = _ALL, *, rule: bool = True) -> Run:
        """Return the state after an fsync of these directories; without the rule there is none."""
        if not (rule and self.kept):
            return self
        if self.mode == "ordered":
            return self._replace(kept=frozenset({self.where}))
        return self._replace(kept=frozenset(one for one in self.kept if not self._is_over(one, folders)))

    def _is_over(self, kept: str, folders: frozenset[str]) -> bool:
        """Whether it cannot be so any more: a checkpoint was renamed since, and one of the two directories fsynced."""
        moves = (
            {_FOLDERS.get(place, "staging") for place in both}
            for both in zip(kept, self.where, strict=True)
            if both[0] != both[1]
        )
        return any(move & folders for move in moves)

    def crashed(self, kept: str) -> Run:
        """Return the state after the server crashed, of which it kept that."""
        doing = tuple(what if what in _IDLE else "dead" for what in self.doing)
        crashes = self.crashes - 1
        left = frozenset({kept}) if crashes else frozenset[str]()
        return self._replace(where=kept, doing=doing, lock="", crashes=crashes, kept=left)  # type: ignore[arg-type]

    def does(self, actor: str) -> str:
        """Return what an actor does next."""
        return self.doing["ABR".index(actor)]

    def then(self, actor: str, what: str) -> Run:
        """Return this state, in which the actor does something else next."""
        at = "ABR".index(actor)
        lock = "" if what in _OVER and self.lock == actor else self.lock
        return self._replace(doing=(*self.doing[:at], what, *self.doing[at + 1 :]), lock=lock)  # type: ignore[arg-type]

    def gap(self) -> str:
        """Return what was moved out of the empty place, if it is empty because of a replacement."""
        return "" if self.there() else next((x for x in _NAMES if self.of(x) in "ab"), "")


class ReplaceModel:
    """The model under some rules."""

    def __init__(self, rules: ReplaceRules, ticks: int = 1, mode: Mode = "") -> None:
        self._rules = rules
        self._ticks = ticks
        self._mode: Mode = mode
        self._settled: dict[str, str] = {}
        """Where all checkpoints are -> which one is published when everybody has died and gc was run."""

    def explore(self) -> Explored:
        """Look at every state."""
        doing = ("new", "new" if self._rules.cluster else "end", "new")
        start = Run(doing=doing, ticks=self._ticks)
        if self._mode:
            start = start._replace(mode=self._mode, crashes=1, kept=frozenset({start.where}))
        return explore(start, lambda run: list(self.steps(run)), self.wrong)

    def steps(self, run: Run) -> Iterator[Step[Run]]:
        """Yield everything that may happen next."""
        for x in "AB":
            yield from self._saver(run, x)
            if run.kills and run.does(x) not in ("new", *_OVER):
                yield Step("", "", f"KILL {x}", run.then(x, "dead")._replace(kills=run.kills - 1))
        yield from self._retention(run)
        if self._may_lock(run, "G"):
            yield from self._collector(run)
        if run.ticks:
            alive = {x for x in "AB" if run.of(x) == "S" and run.does(x) not in (*_OVER, "moved", "gap")}
            yield Step("", "", "THE GRACE PASSES", run._replace(young=frozenset(alive), ticks=run.ticks - 1))
        if run.crashes:
            for kept in sorted(run.kept):
                yield Step("", "", f"THE SERVER CRASHES and keeps {kept}", run.crashed(kept))
        if run.lock and run.losses and self._rules.cluster:
            yield Step("", "", f"{run.lock} LOSES ITS LOCK", run._replace(lock="", losses=run.losses - 1))

    def _may_lock(self, run: Run, who: str) -> bool:
        if not self._rules.locked:
            return True
        of_host_1 = run.lock == "A"
        return not run.lock or (not self._rules.cluster and of_host_1 and who != "A")

    def _saver(self, run: Run, x: str) -> Iterator[Step[Run]]:
        doing, rules = run.does(x), self._rules
        if doing == "new" and self._may_lock(run, x):
            if not run.there() and not (rules.gap_is_taken and run.gap()):
                yield Step(x, _RENAMED, "the place is free", _taken(run, x))
            yield Step(x, _LOCK, "locks the run", run.then(x, "locked")._replace(lock=x, mark=x))
        elif doing == "locked":
            done = self._completed(run) if rules.completed_first and run.gap() else run
            yield Step(x, _COMPLETE_RUN, "completes what others left", done.then(x, "judge"))
        elif doing == "judge" and run.there():
            yield Step(x, _KEEP, f"{run.there()} is to be replaced", run.then(x, f"judged {run.there()}"))
        elif doing == "judge":
            yield from self._published(run, x)
        elif doing.startswith("judged"):
            yield from self._first_rename(run, x, doing[-1])
        elif doing == "moved":
            durable = run.synced(_ALL - {"trash"})
            yield Step(x, _REPLACE, "makes that durable", durable.then(x, "gap"))
        elif doing == "gap":
            yield from self._second_rename(run, x)
        elif doing == "placed":
            # Another one may have replaced or dropped it since.
            told = x if run.there() == x or run.gap() == x else run.told
            durable = run.synced(_ALL - {"trash"}, rule=rules.sync_published)
            yield Step(x, _SYNC, "makes it durable and tells", durable._replace(told=told).then(x, "discard"))
        elif doing == "discard":
            old = [y for y in _NAMES if run.of(y) == x.lower()]
            gone = run.put(old[0], "X") if old else run
            yield Step(x, _DISCARD, "what it replaced goes to trash", gone.then(x, "end"))

    def _asked(self, run: Run, x: str) -> Run | None:
        """Return the state after the lock was asked for again; None: it was lost."""
        rules = self._rules
        if not (rules.checked and rules.locked and rules.cluster) or run.lock == x:
            return run
        if run.lock or (rules.marked and run.mark != x):
            return None
        return run._replace(lock=x)

    def _refuses(self, run: Run, x: str) -> Step[Run]:
        refused = run.put(x, "X")._replace(refused=run.refused | {x})
        return Step(x, _CHECK, "its lock was lost: nothing is changed", refused.then(x, "failed"))

    def _published(self, run: Run, x: str) -> Iterator[Step[Run]]:
        asked = self._asked(run, x)
        if asked is None:
            yield self._refuses(run, x)
        else:
            yield Step(x, _RENAMED, "the place is free", _taken(asked, x))

    def _first_rename(self, run: Run, x: str, judged: str) -> Iterator[Step[Run]]:
        asked, there = self._asked(run, x), run.there()
        if asked is None:
            yield self._refuses(run, x)
        elif not there:
            yield Step(x, _REPLACE, f"{judged} has gone: again", asked.then(x, "judge"))
        else:
            if self._rules.renamed_first:
                for y in (y for y in _NAMES if asked.of(y) in "ab"):
                    asked = asked.put(y, "o")
            asked = asked.synced(frozenset({"staging"}), rule=self._rules.sync_staging)
            moved = asked.put(there, x.lower())._replace(misjudged=run.misjudged or there != judged)
            yield Step(x, _REPLACE, f"moves {there} out", moved.then(x, "moved" if run.kept else "gap"))

    def _second_rename(self, run: Run, x: str) -> Iterator[Step[Run]]:
        old = [y for y in _NAMES if run.of(y) == x.lower()]
        if run.of(x) == "S" and not run.there():
            yield Step(x, _REPLACE, "moves itself in", run.put(x, "P").then(x, "placed"))
        elif old and not run.there():
            back = run.put(old[0], "P").synced(_ALL - {"trash"})
            yield Step(x, _GO_BACK, f"puts {old[0]} back", back.then(x, "unknown"))
        else:
            yield Step(x, _GO_BACK, "cannot go back: the outcome is unknown", run.then(x, "unknown"))

    def _completed(self, run: Run) -> Run:
        """Return the state without its gap; the caller has the run alone."""
        old = run.gap()
        new = run.of(old).upper()
        folders = _ALL - {"trash"}
        run = run.synced(folders)
        return run.put(new if run.of(new) == "S" else old, "P").synced(folders)

    def _collector(self, run: Run) -> Iterator[Step[Run]]:
        rules, gap = self._rules, run.gap()
        if gap and not (rules.grace_of_gaps and gap in run.young):
            yield Step("G", _FILL, "completes a gap", self._completed(run))
        for x in _NAMES:
            needed = gap and rules.new_is_needed and x in (gap, run.of(gap).upper())
            young = rules.grace_of_stagings and x in run.young
            if run.of(x) in "Sabo" and not needed and not young:
                replaced = run.of(x) in "ab"
                durable = run.synced(_ALL - {"trash"}, rule=rules.sync_swept) if replaced else run
                yield Step("G", _SWEEP, f"{x} is dead", durable.put(x, "X"))

    def _retention(self, run: Run) -> Iterator[Step[Run]]:
        doing, there = run.does("R"), run.there()
        writes = self._rules.cluster or run.does("A") in _OVER  # else the host that writes the run drops, too
        if doing == "new" and there and writes and self._may_lock(run, "R"):
            kept = run.synced(_ALL - {"trash"})
            yield Step("R", _LOCK, "locks the run", kept.then("R", f"bury {there}")._replace(lock="R", mark="R"))
        elif doing.startswith("bury"):
            buried = self._asked(run, "R") if self._rules.checked_before_burying else run
            if buried is None:
                yield Step("R", _CHECK, "its lock was lost: nothing is dropped", run.then("R", "failed"))
                return
            for x in _NAMES:
                if self._rules.buried and run.of(x) in "ab":
                    buried = buried.put(x, "X")
            buried = buried.synced(_ALL - {"run"}, rule=self._rules.sync_buried)
            yield Step("R", _BURY, "what was replaced goes first", buried.then("R", f"drop {doing[-1]}"))
        elif doing.startswith("drop"):
            asked = self._asked(run, "R")
            if asked is None or not there:
                yield Step(
                    "R", _CHECK, "its lock was lost, or it has gone: nothing is dropped", run.then("R", "failed")
                )
            else:
                gone = asked.put(there, "X")._replace(misjudged=run.misjudged or there != doing[-1])
                if run.kept:
                    yield Step("R", _DROP, f"drops {there}", gone.then("R", f"gone {run.told}")._replace(lock=""))
                else:
                    yield Step("R", _DROP, f"drops {there} and tells", gone._replace(told="-").then("R", "end"))
        elif doing.startswith("gone"):
            told = "-" if run.told == doing[-1] else run.told  # else another one was published and told since
            durable = run.synced(_ALL - {"staging"}, rule=self._rules.sync_dropped)
            yield Step("R", _DROP, "makes that durable and tells", durable._replace(told=told).then("R", "end"))

    def wrong(self, run: Run) -> str:
        """Return what is bad in this state, or when everybody has died, the grace is over, and gc was run."""
        if run.misjudged:
            return "a checkpoint was replaced or dropped that was not judged"
        for x in "AB":
            if run.of(x) == "X" and run.does(x) not in (*_OVER, "placed", "discard", "moved", "gap"):
                return f"the staging of the live saver {x} was taken away"
        if run.ticks == self._ticks and run.losses == _LOSSES and "unknown" in run.doing:
            return "a save that nothing disturbed does not know its outcome"
        there = self._settle(run)
        if there and there in run.refused:
            return f"the save of {there} was reported as failed, and it is visible"
        unsure = {x for x in "AB" if run.does(x) not in ("new", "end", "failed")}
        if there == run.told or (there in unsure and run.told != there):
            return ""
        if run.told == "-":
            return f"{there} was dropped and is back" if there else ""
        if not there and run.does("R")[:4] in ("drop", "bury", "gone", "dead"):
            return ""
        return f"{run.told} was acknowledged, and {there or 'nothing'} is there"

    def _settle(self, run: Run) -> str:
        if run.where not in self._settled:
            settled = Run(
                where=run.where, doing=("dead", "dead", "dead"), young=frozenset(), ticks=0, kills=0, losses=0
            )
            while True:
                step = next(self._collector(settled), None)
                if step is None:
                    break
                settled = step.state._replace(young=frozenset())
            self._settled[run.where] = settled.there()
        return self._settled[run.where]


def _taken(run: Run, x: str) -> Run:
    """Return the state in which `x` took the place for a free one; one that is empty for a moment is not free."""
    return run.put(x, "P").then(x, "placed")._replace(misjudged=run.misjudged or bool(run.gap()))


def _put(where: str, x: str, place: str) -> str:
    at = _NAMES.index(x)
    return where[:at] + place + where[at + 1 :]
