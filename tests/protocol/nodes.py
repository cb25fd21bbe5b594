"""Nodes with stores of their own that save one checkpoint to a remote.

See `ckstore.remote.mirror.nodes_without_shared_store`.

Each node has one rank and one blob; rank 0 joins. A rank may be killed, and an answer lost, at each step; a pruner
takes any intent for stale at any moment. That a blob which an intent names is not removed is taken from
`tests/protocol/remote`, as one step here. docs/format/remote-v1.md, "Parts of several nodes".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from tests.protocol.search import Explored, Step, explore
from tests.protocol.switches import Switches

_STAGE = "ranks.part.stage_part"
_PART = "remote.parts.push_part"
_JOIN = "remote.mirror.nodes_without_shared_store.publish_apart"
_INTENT = "remote.intents.Intent.write"
_LOOK = "remote.push.Push.send"
_COMMIT = "remote.intents.Intent.commit"
_WHOLE = "remote.parts.push_whole"
_LIST = "objects.publish.publish"
_ADOPT = "remote.mirror.nodes_without_shared_store.adopt"
_END = "remote.parts.PushedPart.end"
_VOID = "remote.pruning.intent_record.void"
_FINISH = "remote.pruning.intent_record.finish"
_PRUNE = "remote.pruning.prune.prune"

_WHOLE_INTENT = 2  # of the rank that joins; 0 and 1 are those of the parts
_ALL = frozenset({0, 1})


@dataclass(frozen=True, slots=True)
class Rules(Switches):
    """Which rules the nodes keep."""

    all_parts: bool = True  # it joins when every part was said to be at the remote
    own_intent: bool = True  # and names the blobs of all in an intent of its own,
    looks_at_all: bool = True  # after which it looks at each of them
    commit_by_intent: bool = True  # it publishes only after changing that intent, which a pruner may have voided
    remote_first: bool = True  # no node lists it before it is at the remote
    says_unknown: bool = True  # a lost answer after the commit has begun is not said to be a failure
    newer_stays: bool = True  # a rank that stood still does not put it in the place of a later one


NAMES = tuple(one.name for one in fields(Rules))


class Node(NamedTuple):
    """A node with its rank: what it does next, what its caller was told, and what its store lists."""

    doing: str = "stages"
    told: str = ""
    lists: str = ""


class World(NamedTuple):
    """Everything.

    Attributes:
        nodes: Both.
        parts: Ranks whose parts the group was told of.
        outcome: What the rank that joins told the group.
        blobs: Which are at the remote.
        intents: Nothing, ``U`` uploading, ``C`` committing, ``V`` void.
        manifest: The ranks whose parts the manifest at the remote has; None: there is none.
        kills, losses: How many may still come.
        again: Whether another start of the job has saved the step since.
    """

    nodes: tuple[Node, Node] = (Node(), Node())
    parts: frozenset[int] = frozenset()
    outcome: str = ""
    blobs: frozenset[int] = frozenset()
    intents: tuple[str, str, str] = ("", "", "")
    manifest: frozenset[int] | None = None
    kills: int = 1
    losses: int = 1
    again: bool = False

    def of(self, rank: int, doing: str, **changed: str) -> World:
        """Return the state in which a rank goes on."""
        nodes = [*self.nodes]
        nodes[rank] = nodes[rank]._replace(doing=doing, **changed)
        return self._replace(nodes=(nodes[0], nodes[1]))

    def intent(self, number: int, state: str) -> World:
        """Return the state in which an intent is changed."""
        intents = [*self.intents]
        intents[number] = state
        return self._replace(intents=(intents[0], intents[1], intents[2]))

    def named(self) -> frozenset[int]:
        """Return the blobs that must stay."""
        parts = {rank for rank in _ALL if self.intents[rank] == "U"}
        whole = _ALL if self.intents[_WHOLE_INTENT] in ("U", "C") else frozenset()
        return frozenset(parts) | whole | (self.manifest or frozenset())


class NodesModel:
    """The model under some rules."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def explore(self) -> Explored:
        """Look at every state."""
        return explore(World(), lambda world: [*self.steps(world)], self.wrong)

    def wrong(self, world: World) -> str:
        """Return what is bad in this state."""
        if world.manifest is not None and world.manifest != _ALL:
            return "it exists without all parts"
        if world.manifest is not None and not world.blobs >= world.manifest:
            return "it exists, and a blob is missing"
        if world.manifest is None and any(node.lists == "it" for node in world.nodes):
            return "a node lists what does not exist"
        told = {node.told for node in world.nodes}
        if world.manifest is not None and "failed" in told:
            return "a rank was told that nothing was saved, and it exists"
        if world.manifest is None and "saved" in told:
            return "a rank was told that it is saved, and it does not exist"
        if world.again and any(node.lists == "it again" for node in world.nodes):
            return "the older one took the place of the newer one"
        return ""

    def steps(self, world: World) -> Iterator[Step[World]]:
        """Yield everything that may happen next."""
        for rank in (0, 1):
            doing = world.nodes[rank].doing
            if doing in ("ended", "dead"):
                continue
            yield from self._part(world, rank, doing)
            if rank == 0:
                yield from self._join(world, doing)
            if world.kills:
                killed = world.of(rank, "dead")._replace(kills=world.kills - 1)
                yield Step(f"rank {rank}", "", "is killed", killed)
        yield from self._prune(world)
        if world.manifest is not None and not world.again:
            newer = _newer(world)._replace(again=True)
            yield Step("another start", "", "saves the step again, and all nodes list that", newer)

    def _part(self, world: World, rank: int, doing: str) -> Iterator[Step[World]]:
        who = f"rank {rank}"
        if doing == "stages":
            yield Step(who, _STAGE, "stages its part", world.of(rank, "announces"))
            yield Step(who, _STAGE, "cannot, and says so", world.of(rank, "waits")._replace(outcome="failed"))
        elif doing == "announces":
            yield Step(who, _INTENT, "of its part", world.intent(rank, "U").of(rank, "sends"))
        elif doing == "sends":
            yield Step(who, _PART, "writes its blob", world._replace(blobs=world.blobs | {rank}).of(rank, "says"))
            failed = world.of(rank, "waits")._replace(outcome="failed")
            yield Step(who, _PART, "has no answer, and says so", failed)
        elif doing == "says":
            ready = (rank == 0 and "joins") or "waits"
            yield Step(who, _PART, "says so", world._replace(parts=world.parts | {rank}).of(rank, ready))
        elif doing == "waits":
            yield from self._waits(world, rank, who)
        elif doing == "lists":
            yield from self._lists(world, rank, who)
        elif doing == "tidies":
            yield Step(who, _END, "removes its intent", world.intent(rank, "").of(rank, "ended"))

    def _waits(self, world: World, rank: int, who: str) -> Iterator[Step[World]]:
        if world.outcome == "saved":
            yield Step(who, _ADOPT, "is told of it", world.of(rank, "lists", told="saved"))
        elif world.outcome:
            yield Step(who, "", "is told why not", world.of(rank, "tidies", told=world.outcome))
        elif "dead" in (world.nodes[0].doing, world.nodes[1].doing):
            # Which may have been after the commit: it is said so.
            yield Step(who, "", "lost a rank", world.of(rank, "tidies", told="lost one"))

    def _lists(self, world: World, rank: int, who: str) -> Iterator[Step[World]]:
        there = world.nodes[rank].lists
        if there == "newer" and self._rules.newer_stays:
            yield Step(who, _ADOPT, "finds a later one", world.of(rank, "tidies"))
        else:
            listed = world.of(rank, "tidies", lists="it again" if there == "newer" else "it")
            yield Step(who, _LIST if rank == 0 else _ADOPT, "lists it in its store", listed)

    def _join(self, world: World, doing: str) -> Iterator[Step[World]]:
        who, rules = "rank 0", self._rules
        if doing == "joins":
            if world.outcome:
                yield Step(who, "", "is told why not", world.of(0, "tidies", told=world.outcome))
            elif "dead" in world.nodes[1].doing and world.parts != _ALL:
                yield Step(who, "", "lost a rank", world.of(0, "tidies", told="lost one"))
            elif world.parts == _ALL or not rules.all_parts:
                yield Step(who, _JOIN, "joins the parts", world.of(0, "announces it"))
        elif doing == "announces it":
            if not rules.remote_first:
                world = world.of(0, "announces it", lists="it")
            after = world.intent(_WHOLE_INTENT, "U") if rules.own_intent else world
            yield Step(who, _INTENT, "of the whole", after.of(0, "looks"))
        elif doing == "looks":
            if world.blobs >= (world.parts if not rules.all_parts else _ALL) or not rules.looks_at_all:
                yield Step(who, _LOOK, "sees all blobs", world.of(0, "commits"))
            else:
                yield self._gives_up(world, _LOOK, "misses a blob")
        elif doing == "commits":
            yield from self._commits(world, who)
        elif doing == "publishes":
            parts = world.parts if not rules.all_parts else _ALL
            there = world._replace(manifest=parts)
            yield Step(who, _WHOLE, "writes the manifest", there.intent(_WHOLE_INTENT, "").of(0, "ends"))
            yield from self._loses(_WHOLE, there, world)
        elif doing == "ends":
            told = world._replace(outcome="saved").of(0, "lists", told="saved")
            yield Step(who, _JOIN, "removes the intents of the parts, and tells all", told.intent(0, "").intent(1, ""))

    def _commits(self, world: World, who: str) -> Iterator[Step[World]]:
        if not self._rules.commit_by_intent or not self._rules.own_intent:
            yield Step(who, _COMMIT, "left out", world.of(0, "publishes"))
        elif world.intents[_WHOLE_INTENT] == "U":
            done = world.intent(_WHOLE_INTENT, "C")
            yield Step(who, _COMMIT, "", done.of(0, "publishes"))
            yield from self._loses(_COMMIT, done, world)
        else:
            yield Step(who, _COMMIT, "is void: begins again", world.of(0, "announces it"))

    def _loses(self, function: str, done: World, not_done: World) -> Iterator[Step[World]]:
        told = "unknown" if self._rules.says_unknown else "failed"
        for what, after in (("is done, and the answer is lost", done), ("reaches nothing", not_done)):
            if after.losses:
                after = after._replace(losses=0, outcome=told).of(0, "tidies", told=told)  # noqa: PLW2901
                yield Step("rank 0", function, what, after)

    def _gives_up(self, world: World, function: str, what: str) -> Step[World]:
        given_up = world.intent(_WHOLE_INTENT, "")._replace(outcome="failed").of(0, "tidies", told="failed")
        return Step("rank 0", function, what, given_up)

    def _prune(self, world: World) -> Iterator[Step[World]]:
        for number, state in enumerate(world.intents):
            if state == "U":
                yield Step("pruner", _VOID, f"voids intent {number}", world.intent(number, "V"))
            elif state == "C":
                done = world._replace(manifest=_ALL).intent(number, "")
                yield Step("pruner", _FINISH, "finishes a push that stopped", done)
            elif state == "V":
                yield Step("pruner", _PRUNE, f"removes intent {number}", world.intent(number, ""))
        for blob in sorted(world.blobs - world.named()):
            yield Step("pruner", _PRUNE, f"removes blob {blob}", world._replace(blobs=world.blobs - {blob}))


def _newer(world: World) -> World:
    nodes = tuple(node._replace(lists="newer") for node in world.nodes)
    return world._replace(nodes=(nodes[0], nodes[1]))
