"""The checkpoints of one step: two savers, a reader, a tagger, a compaction, undo, a delete, and gc.

K is the old checkpoint of the step, L its next generation, which a compaction publishes, A and B are those of two
savers. Saver B works on host 2, all others on host 1. Either every lock reaches both hosts, or none does. Each
checkpoint has a name of its own, so nothing takes the place of another one. The step shows the newest one that is
whole, by sequence number; two that were saved at once may have the same number, and then `Scenario.ties` decides. Where
locks do not reach, B drops nothing in a scenario with a tagger: a tag of one host does not stop a drop of another host.

After a power cut directories are where they were at some moment since the last fsync. *Ordered*: all at one moment.
*Weak*: each for itself, until one of the two parents of a rename was fsynced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

from tests.protocol.search import Explored, Step, explore
from tests.protocol.switches import Switches

_NEXT = "ops.index.sequence.next_sequence"
_PUBLISH = "objects.publish.publish"
_RENAMED = "objects.publish.give_name"
_WITHDRAW = "objects.publish._withdraw"
_SYNC = "objects.publish.sync_parents"
_DROP = "ops.free.drop.drop"
_DELETE = "ops.free.drop.delete"
_SUPERSEDED = "ops.free.superseded_checkpoints.drop_superseded"
_UNDELETE = "ops.free.undo.undo"
_COMPACT = "ops.compact.compact.compact"
_SWEEP = "objects.trash.sweep_staging"
_DUE = "objects.trash.due"
_APART = "objects.collector.Collector._take_apart"
_HELD = "ops.refs.protection.held"
_TAG = "ops.refs.labels.write_tag"
_AT = "objects.checkpoints.CheckpointDirectory.at"
_CLOSE = "objects.checkpoints.CheckpointDirectory.close"

_ALL = "KLAB"
_FOLDERS = {"S": "staging", "H": "run", "P": "run", "U": "trash", "X": "trash", "-": "trash"}
_OVER = ("new", "end", "failed", "dead")
IfExists = Literal["error", "keep", "replace"]
Mode = Literal["ordered", "weak"]


@dataclass(frozen=True, slots=True)
class StepRules(Switches):
    """Which rules the modelled code keeps."""

    run_locks: bool = True  # publish.publish: a save that may find another one lists and renames alone in the run
    hidden_first: bool = True  # publish._hide: where locks do not reach, under a hidden name until it has listed
    lists: bool = True  # publish.publish: another checkpoint of the step is looked for
    shown_only: bool = True  # publish.publish: the same content is returned only if the step shows it
    takes_newest: bool = True  # publish.publish: with a greater number than what it finds, or undo may bring back
    sync_sealed: bool = True  # Staging.seal: what is in a checkpoint, before it is published
    sync_published: bool = True  # publish.sync_parents: the rename, before a drop and the acknowledgement
    older_only: bool = True  # publish.publish: a replacement drops what is older than itself
    sync_tagged: bool = True  # labels.write_tag: its name, before the tag
    drop_locks: bool = True  # drop.drop: nothing that a process uses is dropped
    drop_reads_tags: bool = True  # drop.drop: tags are read again under the lock
    all_generations: bool = True  # drop.drop: every generation goes, the older first, or none while that is in use
    generation_held: bool = True  # compact.compact: generation n is in use until n+1 is published
    new_first: bool = True  # compact.compact: generation n goes when n+1 is durable
    sync_kept: bool = True  # superseded.drop_superseded: the newer one is durable before the older one goes
    newer_held: bool = True  # superseded.drop_superseded: the newer one is in use meanwhile
    gc_waits: bool = True  # superseded.drop_superseded: for the undo window since it came to its name
    undo_waits: bool = True  # trash.due: nothing is taken apart while it can be brought back
    empty_locks: bool = True  # Collector._take_apart: nor while a process uses it
    sync_trash: bool = True  # Collector.empty: the rename to trash, before anything is unlinked


NAMES = tuple(one.name for one in fields(StepRules))


@dataclass(frozen=True)
class Scenario:
    """Who takes part.

    Attributes:
        a, b: The policy of each saver; empty if there is none.
        cluster: Whether locks reach the other host.
        contents: The contents of K, A and B; L has that of K.
        ties: Which of K, A and B is the newer one if their numbers are equal: the later.
        old: K: ``P`` published, ``D`` published and damaged, ``-`` there is none.
        mode: What a power cut does.
        undo: Whether a dropped checkpoint can be brought back for a while.
        reads, tags, compacts: Whether there is a reader, a tagger, a compaction.
        kills, cuts, ticks, undos, deletes, gcs: How often these may happen.
    """

    name: str
    a: IfExists | Literal[""] = ""
    b: IfExists | Literal[""] = ""
    cluster: bool = True
    contents: str = "kab"
    ties: str = "KAB"
    old: str = "P"
    mode: Mode = "ordered"
    undo: bool = False
    reads: bool = False
    tags: bool = False
    compacts: bool = False
    kills: int = 0
    cuts: int = 0
    ticks: int = 0
    undos: int = 0
    deletes: int = 0
    gcs: int = 0
    rules: StepRules = field(default_factory=StepRules)

    def __str__(self) -> str:
        who = f"{self.a or '-'} and {self.b or '-'}, {'cluster' if self.cluster else 'host'}"
        return f"{self.name}, {who}, {self.ties}, {self.mode}"


class Left(NamedTuple):
    """How often something may still happen."""

    kills: int
    cuts: int
    ticks: int
    undos: int
    deletes: int
    gcs: int


class State(NamedTuple):
    """One state.

    Attributes:
        where: For K, L, A and B: ``S`` in staging, ``H`` in the run under a hidden name, ``P`` published, ``U`` in
            trash for the undo window, ``X`` in trash, ``-`` nowhere.
        left: How often what may still happen.
        kept: As `where`: what a power cut may bring back.
        doing: What A, B, the compaction, the tagger and the reader do next.
        gc: What gc is about to drop, and for which newer one.
        numbers: The sequence numbers of K, A and B.
        acked: Checkpoints of which a save or an undo said that they are there.
        deleted: Those of which a delete said that they are gone.
        replaced: Those that were dropped for a newer one which had the right to their place.
        restored: Those that were brought back.
        young: Those that came to their name within the undo window.
        torn: Those that lack a part.
        tag: What the tag names.
        wrong: What a step did that is bad in any state.
    """

    where: str
    left: Left
    kept: frozenset[str] = frozenset()
    doing: tuple[str, ...] = ("new",) * 5
    gc: str = ""
    numbers: tuple[int, ...] = (0, 0, 0)
    acked: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    restored: frozenset[str] = frozenset()
    young: frozenset[str] = frozenset()
    torn: frozenset[str] = frozenset()
    tag: str = ""
    wrong: str = ""

    def at(self, x: str) -> str:
        """Return where a checkpoint is."""
        return self.where[_ALL.index(x)]

    def published(self) -> str:
        """Return the published checkpoints, whole or not."""
        return "".join(x for x in _ALL if self.at(x) == "P")

    def does(self, actor: str) -> str:
        """Return what an actor does next: A, B, C (compaction), T (tagger) or R (reader)."""
        return self.doing["ABCTR".index(actor)]

    def then(self, actor: str, what: str) -> State:
        """Return this state, in which the actor does something else next."""
        i = "ABCTR".index(actor)
        return self._replace(doing=(*self.doing[:i], what, *self.doing[i + 1 :]))

    def spend(self, what: str) -> State:
        """Return this state, in which `what` may happen one time less."""
        return self._replace(left=self.left._replace(**{what: getattr(self.left, what) - 1}))


class OneStepModel:
    """The model of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rules = scenario.rules

    def explore(self) -> Explored:
        """Look at every state."""
        one = self._scenario
        where = ("P" if one.old in "PD" else "-") + "-" + ("S" if one.a else "-") + ("S" if one.b else "-")
        start = State(where, Left(one.kills, one.cuts, one.ticks, one.undos, one.deletes, one.gcs))
        start = start._replace(
            kept=frozenset({where} if one.cuts else ()),
            acked=frozenset("K" if one.old == "P" else ""),
            torn=frozenset("K" if one.old == "D" else ""),
        )
        return explore(start, lambda state: list(self.steps(state)), self.bad)

    # ------------------------------------------------------------------ what is bad

    def bad(self, state: State) -> str:
        """Return what is bad in this state."""
        if state.wrong:
            return state.wrong
        for x in state.published():
            if x in "AB" and state.does(x) == "failed":
                return f"the save of {x} was reported as failed, and it is published"
            if x in state.torn and self._scenario.old + x != "DK":
                return f"{x} is published, and a part of it is lacking"
            if _id(x) in state.deleted:
                return f"{_id(x)} was deleted and is back"
        for x in sorted(state.acked - state.deleted):
            newer = [y for y in "KAB" if y != x and self._key(state, y) > self._key(state, x)]
            after = any(y in state.deleted or self._whole(state, y) for y in newer)
            if not self._whole(state, x) and not (x in state.replaced and after):
                return f"{x} was acknowledged and is lost"
        if state.tag and not self._whole(state, state.tag):
            return "a tag names nothing"
        if any(state.at(x) == "U" and x in state.torn for x in _ALL):
            return "undo is promised and impossible"
        open_one = state.does("R")
        return "an open checkpoint is taken apart" if open_one in _ALL and open_one in state.torn else ""

    def _whole(self, state: State, x: str) -> bool:
        """Whether a checkpoint is published and whole, in any generation."""
        return any(state.at(y) == "P" and y not in state.torn for y in _generations(x))

    def _key(self, state: State, x: str) -> tuple[int, int, bool]:
        """Return the order of a checkpoint: the greater is the newer."""
        return state.numbers["KAB".index(_id(x))], self._scenario.ties.index(_id(x)), x == "L"

    def _newest(self, state: State) -> str:
        whole = [x for x in state.published() if x not in state.torn]
        return max(whole, key=lambda x: self._key(state, x), default="")

    def _content(self, x: str) -> str:
        return self._scenario.contents["KAB".index(_id(x))]

    def _policy(self, x: str) -> str:
        return {"A": self._scenario.a, "B": self._scenario.b}.get(x, "error")

    def _used(self, state: State, x: str, by: str, *, rule: bool = True) -> bool:
        """Whether `by` finds a checkpoint locked for use."""
        users = [actor for actor in "ABCTR" if self._uses(state, actor, x)]
        if state.gc and x in state.gc[: 1 + self._rules.newer_held]:
            users.append("G")
        return rule and any(self._scenario.cluster or (user == "B") == (by == "B") for user in users if user != by)

    def _uses(self, state: State, actor: str, x: str) -> bool:
        """Whether an actor has a checkpoint locked for use."""
        doing = state.does(actor)
        if actor in "TR":
            return doing[-1] == x
        if actor == "C":
            return doing not in _OVER and (x == "L" or (x == "K" and doing != "drop" and self._rules.generation_held))
        return doing not in _OVER and (x == actor or doing == f"locked {x}")

    # ------------------------------------------------------------------ renames and fsyncs

    def _move(self, state: State, x: str, place: str) -> State:
        where = _put(state.where, x, place)
        kept = state.kept
        if state.left.cuts:
            kept |= {where}
            if self._scenario.mode == "weak":
                kept |= {_put(one, x, place) for one in kept}
        young = state.young | {x} if place == "P" else state.young - {x}
        return state._replace(where=where, kept=kept, young=young)

    def _synced(self, state: State, *folders: str, rule: bool = True) -> State:
        """Return the state after fsyncs of these directories."""
        if not (rule and state.left.cuts):
            return state
        if self._scenario.mode == "ordered":
            return state._replace(kept=frozenset({state.where}))

        def may_be(one: str) -> bool:
            moves = ({_FOLDERS[a], _FOLDERS[b]} for a, b in zip(one, state.where, strict=True) if a != b)
            return not any(move & {*folders} for move in moves)

        return state._replace(kept=frozenset(filter(may_be, state.kept)))

    def _to_trash(self, state: State, x: str, newer: str) -> State:
        """Drop a checkpoint for a newer one; note whether that one had the right to its place."""
        after = self._move(state, x, "U" if self._scenario.undo and _id(x) != _id(newer) else "X")
        yields = _id(x) in state.restored or self._policy(x) == "replace"
        right = [
            y
            for y in "KAB"
            if self._key(state, y) > self._key(state, x)
            and (self._whole(state, y) or y in state.deleted)
            and (self._policy(y) == "replace" or (yields and y not in state.deleted))
        ]
        return after._replace(replaced=state.replaced | {_id(x)}) if right else after

    def _droppable(self, state: State, by: str, x: str, newer: str) -> bool:
        """Whether `drop` drops a checkpoint for a newer one."""
        tagged = self._rules.drop_reads_tags and state.tag == _id(x) != _id(newer)
        last = x == "L" and state.at("K") == "P" and self._rules.all_generations
        return not tagged and not last and not self._used(state, x, by, rule=self._rules.drop_locks)

    # ------------------------------------------------------------------ what may happen next

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Yield everything that may happen next."""
        for x in "AB":
            if self._policy(x):
                yield from self._saver(state, x)
        yield from self._compaction(state)
        yield from self._tagger(state)
        yield from self._reader(state)
        yield from self._user(state)
        yield from self._gc(state)
        if state.left.kills:
            for actor in (actor for actor in "ABC" if state.does(actor) not in _OVER):
                yield Step("", "", f"KILL {actor}", state.spend("kills").then(actor, "dead"))
        if state.left.cuts:
            for where in sorted(state.kept):
                yield Step("", "", f"POWER CUT: {where}", self._cut(state, where))
        if state.left.ticks:
            kept = frozenset(where.replace("U", "X") for where in state.kept)
            passed = state.spend("ticks")._replace(where=state.where.replace("U", "X"), kept=kept, young=frozenset())
            yield Step("", _DUE, "THE UNDO WINDOW IS OVER", passed)

    def _cut(self, state: State, where: str) -> State:
        after = state.spend("cuts")
        doing = tuple(what if what in _OVER else "dead" for what in state.doing)
        torn = state.torn | (frozenset() if self._rules.sync_sealed else frozenset("AB"))
        kept = frozenset({where} if after.left.cuts else ())
        back = frozenset(x for x in state.replaced if "P" in (where[_ALL.index(y)] for y in _generations(x)))
        return after._replace(where=where, doing=doing, torn=torn, kept=kept, gc="", replaced=state.replaced - back)

    def _saver(self, state: State, x: str) -> Iterator[Step[State]]:
        doing, rules, policy = state.does(x), self._rules, self._policy(x)
        cluster = self._scenario.cluster
        hides = not cluster and rules.hidden_first and policy != "replace"
        if doing == "new":
            begun = self._numbered(state, x, [*state.published()])
            yield Step(x, _NEXT, "takes a number", begun.then(x, "reserve" if hides else "list"))
        elif doing == "reserve":
            if "H" in state.where:
                taken = self._withdrawn(state, x).then(x, "failed")
                yield Step(x, _RENAMED, "the hidden name is taken, by a save that lives or died", taken)
            else:
                yield Step(x, _RENAMED, "renames it to the hidden name", self._move(state, x, "H").then(x, "list"))
        elif doing == "list":
            yield self._lists(state, x)
        elif doing == "free":
            yield self._publishes(state, x)
        elif doing == "placed":
            again = not cluster and not rules.hidden_first and policy != "replace" and rules.lists
            durable = self._synced(state, "run", "staging", rule=rules.sync_published)
            yield Step(x, _SYNC, "makes it durable", durable.then(x, "again" if again else "drop"))
        elif doing == "again":
            others = [y for y in state.published() if self._content(y) != self._content(x) and y not in state.torn]
            yield Step(x, _PUBLISH, "lists again", state.then(x, f"found {others[0]}" if others else "drop"))
        elif doing.startswith("found"):
            stays = self._content(doing[-1]) == self._content(x) or policy == "keep"
            then = f"existing {doing[-1]}" if stays else "failed"
            yield Step(x, _WITHDRAW, f"withdraws for {doing[-1]}", self._withdrawn(state, x).then(x, then))
        elif doing == "drop":
            yield self._drops(state, x)
        elif doing.startswith("existing"):
            held = self._whole(state, doing[-1])
            yield Step(x, _PUBLISH, f"locks {doing[-1]}", state.then(x, f"locked {doing[-1]}" if held else "failed"))
        elif doing.startswith("locked"):
            durable = self._synced(state, "run", "staging", rule=rules.sync_published)
            told = durable._replace(acked=durable.acked | {_id(doing[-1])})
            yield Step(x, _SYNC, f"makes {doing[-1]} durable and returns it", told.then(x, "end"))

    def _numbered(self, state: State, x: str, counted: list[str]) -> State:
        numbers = [*state.numbers]
        numbers["KAB".index(x)] = 1 + max((self._key(state, y)[0] for y in counted), default=-1)
        return state._replace(numbers=tuple(numbers))

    def _withdrawn(self, state: State, x: str) -> State:
        return self._synced(self._move(state, x, "X"), "trash", "run")

    def _lists(self, state: State, x: str) -> Step[State]:
        rules = self._rules
        whole = [y for y in state.published() if y not in state.torn and rules.lists]
        whole.sort(key=lambda y: self._key(state, y))
        same = [y for y in (whole[-1:] if rules.shown_only else whole) if self._content(y) == self._content(x)]
        if same or (whole and self._policy(x) != "replace"):
            there = (same or whole)[-1]
            if there != whole[-1] and self._policy(x) == "replace":
                state = state._replace(wrong=f"{x} gets {there}, and {whole[-1]} is shown")
            return Step(x, _PUBLISH, f"finds {there}", state.then(x, f"found {there}"))
        older = [y for y in _ALL if state.at(y) in "PU"]
        if rules.takes_newest and any(self._key(state, y) > self._key(state, x) for y in older):
            state = self._numbered(state, x, older)
        elif newer := [y for y in whole if self._key(state, y) > self._key(state, x)]:
            state = state._replace(wrong=f"{x} was to replace {newer[0]}, and {newer[0]} is shown")
        if self._scenario.cluster and rules.run_locks:
            return self._publishes(state, x)
        return Step(x, _PUBLISH, "finds no other that counts", state.then(x, "free"))

    def _publishes(self, state: State, x: str) -> Step[State]:
        return Step(x, _RENAMED, "renames it to its name", self._move(state, x, "P").then(x, "placed"))

    def _drops(self, state: State, x: str) -> Step[State]:
        rules = self._rules
        older = [y for y in state.published() if y != x and self._key(state, y) < self._key(state, x)]
        if not rules.older_only:
            older = [y for y in state.published() if y != x]
        todo = [y for y in older if self._policy(x) == "replace" and self._droppable(state, x, y, x)]
        if todo:
            return Step(x, _DROP, f"drops {todo[0]}", self._to_trash(state, todo[0], x))
        durable = self._synced(state, "trash", "run", rule=rules.sync_published)
        return Step(x, _PUBLISH, "is acknowledged", self._acked(durable, x).then(x, "end"))

    def _acked(self, state: State, x: str) -> State:
        """Note that the save was acknowledged."""
        other = [
            y
            for y in state.acked - state.deleted - state.restored - state.replaced
            if self._content(y) != self._content(x) and self._policy(y) != "replace"
        ]
        if x not in state.deleted | state.restored and self._policy(x) != "replace" and other:
            state = state._replace(wrong=f"{other[0]} and {x} were both acknowledged, and neither was to be replaced")
        return state._replace(acked=state.acked | {x})

    def _compaction(self, state: State) -> Iterator[Step[State]]:
        doing, rules = state.does("C"), self._rules
        if doing == "new" and self._scenario.compacts and state.at("K") == "P":
            yield Step("C", _COMPACT, "holds K, writes L", self._move(state, "L", "S").then("C", "written"))
        elif doing == "written":
            yield Step("C", _COMPACT, "publishes L", self._move(state, "L", "P").then("C", "placed"))
        elif doing == "placed":
            durable = self._synced(state, "run", "staging", rule=rules.new_first)
            yield Step("C", _SYNC, "makes it durable, points the tags to it", durable.then("C", "drop"))
        elif doing == "drop":
            dropped = state
            if state.at("K") == state.at("L") == "P" and self._droppable(state, "C", "K", "L"):
                dropped = self._to_trash(state, "K", "L")
            yield Step("C", _DROP, "drops K unless it is in use", dropped.then("C", "end"))

    def _tagger(self, state: State) -> Iterator[Step[State]]:
        doing = state.does("T")
        if doing == "new" and self._scenario.tags:
            for x in state.published():
                if x not in state.torn:
                    yield Step("T", _HELD, f"holds {x}", state.then("T", f"held {x}"))
        elif doing.startswith("held"):
            durable = self._synced(state, "run", "staging", rule=self._rules.sync_tagged)
            yield Step(
                "T", _TAG, "makes it durable, writes the tag", durable._replace(tag=_id(doing[-1])).then("T", "end")
            )

    def _reader(self, state: State) -> Iterator[Step[State]]:
        doing = state.does("R")
        if doing == "new" and self._scenario.reads:
            for x in state.published():
                if x not in state.torn:
                    yield Step("R", _AT, f"opens {x}", state.then("R", x))
        elif doing in _ALL:
            yield Step("R", _CLOSE, f"closes {doing}", state.then("R", "end"))

    def _user(self, state: State) -> Iterator[Step[State]]:
        """A user deletes a checkpoint, or brings one back."""
        rules, trash = self._rules, "U" if self._scenario.undo else "X"
        if state.left.deletes:
            for x in sorted({_id(y) for y in state.published()} - {state.tag}):
                there = [y for y in _generations(x) if state.at(y) == "P"]
                there = there if rules.all_generations else there[-1:]
                if any(self._used(state, y, "D", rule=rules.drop_locks) for y in there):
                    continue
                gone = state.spend("deletes")
                for y in there:
                    gone = self._move(gone, y, trash)
                gone = self._synced(gone, "trash", "run")._replace(deleted=state.deleted | {x})
                yield Step("D", _DELETE, f"deletes {x}", gone)
        if state.left.undos:
            for x in (x for x in _ALL if state.at(x) == "U" and not self._used(state, x, "U")):
                back = self._synced(self._move(state.spend("undos"), x, "P"), "run", "trash")
                back = back._replace(
                    acked=back.acked | {_id(x)},
                    deleted=back.deleted - {_id(x)},
                    replaced=back.replaced - {_id(x)},
                    restored=back.restored | {_id(x)},
                )
                yield Step("U", _UNDELETE, f"brings {x} back", back)

    def _gc(self, state: State) -> Iterator[Step[State]]:
        rules, newest = self._rules, self._newest(state)
        if state.gc:
            x, newer = state.gc[0], state.gc[1]
            after = state._replace(gc="")
            if state.at(x) == "P" and self._droppable(state, "G", x, newer):
                after = self._to_trash(after, x, newer)
                if x in state.restored and x in state.young:
                    after = after._replace(wrong=f"gc dropped {x}, which was just brought back")
            yield Step("G", _SUPERSEDED, f"drops {x} for {newer}", after)
        elif state.left.gcs:
            for x in state.published() if newest else "":
                if self._key(state, x) < self._key(state, newest) and not (rules.gc_waits and x in state.young):
                    durable = self._synced(state.spend("gcs"), "run", "staging", rule=rules.sync_kept)
                    yield Step("G", _SUPERSEDED, f"{newest} supersedes {x}", durable._replace(gc=x + newest))
        for x in _ALL:
            if state.at(x) in "SH" and state.does("C" if x == "L" else x) == "dead":
                yield Step("G", _SWEEP, f"{x} is dead", self._move(state, x, "X"))
            unused = not (self._used(state, x, "G") and rules.empty_locks)
            if (state.at(x) == "X" or (state.at(x) == "U" and not rules.undo_waits)) and unused:
                durable = self._synced(state, "trash", "run", "staging", rule=rules.sync_trash)
                gone = durable if state.at(x) == "U" else self._move(durable, x, "-")
                yield Step("G", _APART, f"takes {x} apart", gone._replace(torn=gone.torn | {x}))


def _id(x: str) -> str:
    return "K" if x == "L" else x


def _generations(x: str) -> str:
    return "KL" if _id(x) == "K" else x


def _put(where: str, x: str, place: str) -> str:
    i = _ALL.index(x)
    return where[:i] + place + where[i + 1 :]
