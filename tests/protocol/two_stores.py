"""Two stores mirror one run to one remote: owners, policies, claims and a pruner together.

Source: docs/format/remote-v1.md, "Mirror of a run", "Evict", "Remove a checkpoint" and "Prune".

Each store saves, owns the run, pushes its checkpoints, evicts some, and applies the policy "keep the newest one".
There are no clocks: each store may take the other for dead at any moment, and each process may sleep between two steps.

Four things are one step each, since other models search what happens inside them: a push (``remote.py``), an eviction's
change of what is condemned and its look (``claims.py``), the end of claims (``claims.py``), and one look of the pruner
(``remote.py`` and ``claims.py``). A checkpoint that a policy drops locally cannot be brought back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from tests.protocol.search import Step
from tests.protocol.switches import Switches


@dataclass(frozen=True, slots=True)
class Rules(Switches):
    """Which rules stores keep."""

    # Ownership.own
    by_swap: bool = True  # the owner is replaced on the version that was read, or created where there is none
    promise_first: bool = True  # a number is promised before a checkpoint that has it is pushed
    owns_to_push: bool = True  # a mirror that does not own the run pushes nothing
    # Ownership._take_over_run, Ownership._create_owner
    raises_order: bool = True  # who takes a run over saves above the promised number
    raises_first: bool = True  # from before it takes the run
    looks_on_making: bool = True  # who creates the owner looks at the checkpoints that are there
    # evict
    claims_first: bool = True  # an eviction claims the checkpoint before it looks at the remote
    # PresenceCheck.lacks
    looks_for_mark: bool = True  # and looks for the mark of a removal
    # KeepRemote._candidates
    judges_own: bool = True  # a policy counts for a run that no other store owns
    judges_last: bool = True  # and reads the owner after it listed the checkpoints
    # mirror_record.wanted_there
    spares_own: bool = True  # a policy keeps the newest checkpoint of its store, whatever else is there
    spares_pushed: bool = True  # of those of its store that are there: a later one may not have been pushed yet
    # KeepRemote._drop_locally, end_claims
    ends_unneeded: bool = True  # a policy ends claims of its store that no checkpoint of it names, and no others
    # remove_there
    marks_first: bool = True  # a removal writes its mark before it looks for claims
    looks_for_claims: bool = True  # and looks for them
    # Survey.named
    claimed_exists: bool = True  # a pruner takes a claimed checkpoint with a mark for one that exists
    names_claims: bool = True  # and a claim for something that names its blob


NAMES = tuple(one.name for one in fields(Rules))


class Doc(NamedTuple):
    """``owner.json``: `change` counts how often it was written."""

    store: int
    sequence: int
    change: int = 0


class Checkpoint(NamedTuple):
    """A checkpoint, in the store that saved it and at the remote.

    Attributes:
        store, number: Which store saved it, and its place in the order.
        term: The takeover since which its store had the run when it saved it; 0: none.
        listed, bytes_here, word: Whether its store lists it, has its bytes, and has ``elsewhere.json`` in it.
        pushed: Whether its store pushed it; then the push was acknowledged.
        manifest, blob, claim: Whether each is at the remote.
        mark: The store whose removal wrote ``dropped``; -1: it is not there.
    """

    store: int
    number: int
    term: int = 0
    listed: bool = True
    bytes_here: bool = True
    word: bool = False
    pushed: bool = False
    manifest: bool = False
    blob: bool = False
    claim: bool = False
    mark: int = -1

    @property
    def exists(self) -> bool:
        """Whether the remote has it."""
        return self.manifest and (self.mark < 0 or self.claim)


class Mirror(NamedTuple):
    """The mirror of a store, and its saves.

    Attributes:
        at: Where it is.
        seen: The owner that it read.
        order: The greatest number that it read with that: promised, or of a checkpoint there.
        promised: What it promised last when it wrote the owner.
        floor: Later saves have greater numbers.
        term: The takeover by which it took the run last; 0: never.
        target: The checkpoint that it pushes.
        saves, by_hand: How often it may still save, and push by hand.
    """

    at: str = "idle"
    seen: Doc | None = None
    order: int = 0
    promised: int = 0
    floor: int = 0
    term: int = 0
    target: int = -1
    saves: int = 1
    by_hand: int = 0


class Evict(NamedTuple):
    """Evictions of a store: where the current one is, its checkpoint, and how many more there may be."""

    at: str = "idle"
    target: int = -1
    times: int = 0


class Policy(NamedTuple):
    """A policy of a store: where it is, what goes, and how often it may still be applied."""

    at: str = "idle"
    going: frozenset[int] = frozenset()
    times: int = 0


class Prune(NamedTuple):
    """A pruner: whether it has looked, which blobs nothing names, what version it read, and how many more looks."""

    at: str = "idle"
    unnamed: frozenset[int] = frozenset()
    seen: int = 0
    looks: int = 0


class World(NamedTuple):
    """Everything; `condemned` has checkpoints whose blob is, and `version` says how often that was written."""

    doc: Doc | None
    writes: int
    takeovers: int
    checkpoints: tuple[Checkpoint, ...]
    condemned: frozenset[int]
    version: int
    mirrors: tuple[Mirror, Mirror]
    evicts: tuple[Evict, Evict]
    policies: tuple[Policy, Policy]
    prune: Prune

    def change(self, which: Iterable[int], **members: object) -> World:
        """Return the world with some checkpoints changed."""
        chosen = {*which}
        changed = (
            one._replace(**members) if index in chosen else one  # type: ignore[arg-type]
            for index, one in enumerate(self.checkpoints)
        )
        return self._replace(checkpoints=tuple(changed))


@dataclass(frozen=True)
class Scenario:
    """How often each store does what.

    Attributes:
        before: Checkpoints from before, all pushed: of each its store. The store of the last one owns the run.
        no_owner: No store owns the run, since they were pushed by hand.
        again: How often a store may push again, by name, what was removed.
    """

    name: str
    before: tuple[int, ...] = ()
    no_owner: bool = False
    saves: tuple[int, int] = (1, 1)
    by_hand: tuple[int, int] = (0, 0)
    evictions: tuple[int, int] = (0, 0)
    policies: tuple[int, int] = (0, 0)
    looks: int = 0
    takeovers: int = 2
    again: bool = False
    rules: Rules = field(default_factory=Rules)

    def start(self) -> World:
        """Return the world before anything happens."""
        term = 1 if self.before and not self.no_owner else 0
        owner = self.before[-1] if term else -1
        before = tuple(
            Checkpoint(store, number, term if store == owner else 0, pushed=True, manifest=True, blob=True)
            for number, store in enumerate(self.before, 1)
        )
        doc = Doc(owner, len(before)) if term else None

        def mirror(who: int) -> Mirror:
            floor = max((one.number for one in before if one.store == who), default=0)
            promised, own_term = (len(before), term) if who == owner else (0, 0)
            return Mirror(
                promised=promised, floor=floor, term=own_term, saves=self.saves[who], by_hand=self.by_hand[who]
            )

        return World(
            doc,
            0,
            term,
            before,
            frozenset(),
            0,
            (mirror(0), mirror(1)),
            (Evict(times=self.evictions[0]), Evict(times=self.evictions[1])),
            (Policy(times=self.policies[0]), Policy(times=self.policies[1])),
            Prune(looks=self.looks),
        )

    def wrong(self, world: World) -> str:
        """Return what is bad."""
        for one in world.checkpoints:
            name = f"number {one.number} of store {one.store}"
            if one.listed and not one.bytes_here:
                if not one.word or not one.blob:
                    return f"{name} has its bytes neither here nor there"
                # A removal that slept can hit the manifest that a push wrote again; then the claim keeps the blob.
                if not one.manifest and not self.again:
                    return f"{name} has no bytes here, and was removed there"
            # One with a mark that an eviction only claims is given up by it, see `claims.py`.
            if one.manifest and one.mark < 0 and not one.blob:
                return f"{name} exists there and lacks its blob"
        return self._wrong_for_owner(world)

    def _wrong_for_owner(self, world: World) -> str:
        if world.doc is None:
            return ""
        owner = world.doc.store
        own = [one for one in world.checkpoints if one.store == owner and one.pushed and one.term == world.takeovers]
        if not own:
            return ""
        for one in own:
            if one.mark not in {-1, owner}:
                return f"number {one.number} of the owner {owner} is removed by the policy of store {one.mark}"
        newest = max(own, key=lambda one: one.number)
        if newest.mark >= 0 or not newest.manifest:
            return f"number {newest.number}, the newest of the owner {owner}, is removed by its own policy"
        others = [one.number for one in world.checkpoints if one.pushed and one.store != owner]
        # A push by hand needs not own the run, so it may bring a greater number.
        if not any(self.by_hand) and newest.number <= max(others, default=0):
            return f"number {newest.number}, the newest of the owner {owner}, is not the newest there"
        return ""

    def steps(self, world: World) -> Iterator[Step[World]]:
        """Yield everything that may happen next."""
        for who in (0, 1):
            for function, what, after, mirror in self._mirror(world, who, world.mirrors[who]):
                mirrors = (mirror, after.mirrors[1]) if who == 0 else (after.mirrors[0], mirror)
                yield Step(f"store {who}", _FUNCTIONS[function], what, after._replace(mirrors=mirrors))
            for function, what, after, evict in self._evict(world, who, world.evicts[who]):
                evicts = (evict, after.evicts[1]) if who == 0 else (after.evicts[0], evict)
                yield Step(f"eviction of store {who}", _FUNCTIONS[function], what, after._replace(evicts=evicts))
            for function, what, after, policy in self._policy(world, who, world.policies[who]):
                policies = (policy, after.policies[1]) if who == 0 else (after.policies[0], policy)
                yield Step(f"policy of store {who}", _FUNCTIONS[function], what, after._replace(policies=policies))
        for what, after, prune in self._prune(world, world.prune):
            yield Step("pruner", _FUNCTIONS["prune"], what, after._replace(prune=prune))

    # Saves, owners and pushes

    def _mirror(self, world: World, who: int, own: Mirror) -> Iterator[tuple[str, str, World, Mirror]]:
        if own.saves:
            saved = Checkpoint(who, own.floor + 1, own.term)
            after = world._replace(checkpoints=(*world.checkpoints, saved))
            yield "save", f"number {saved.number}", after, own._replace(floor=saved.number, saves=own.saves - 1)
        for index, one in enumerate(world.checkpoints):
            is_again = self.again and one.mark >= 0
            if own.by_hand and one.store == who and one.bytes_here and (is_again or not one.pushed):
                after = _pushed(world, index)
                yield "push", f"number {one.number} by hand", after, own._replace(by_hand=own.by_hand - 1)
        # The newest first, as a mirror does.
        waiting = [index for index, one in enumerate(world.checkpoints) if one.store == who and not one.pushed]
        if own.at == "idle" and waiting:
            target = own._replace(target=waiting[-1])
            if world.checkpoints[waiting[-1]].number <= own.promised:  # it wrote so, and does not ask again
                yield "own", "has promised it", world, target._replace(at="push")
            else:
                yield "own", "reads who owns the run", world, target._replace(at="decide", seen=world.doc)
        elif own.at in {"decide", "swap", "raise"}:
            yield from self._own(world, who, own)
        elif own.at == "push":
            number = world.checkpoints[own.target].number
            after = world if world.checkpoints[own.target].pushed else _pushed(world, own.target)
            yield "push", f"number {number}", after, own._replace(at="idle", target=-1)

    def _own(self, world: World, who: int, own: Mirror) -> Iterator[tuple[str, str, World, Mirror]]:
        rules, seen = self.rules, own.seen
        idle = own._replace(at="idle", seen=None, order=0, target=-1)
        takes = seen is None or seen.store != who
        if own.at == "decide":
            there = max((one.number for one in world.checkpoints if one.manifest), default=0)
            promised = there if seen is None and rules.looks_on_making else 0 if seen is None else seen.sequence
            swapping = own._replace(at="swap", order=promised)
            if seen is not None and takes:
                if rules.owns_to_push:
                    yield "own", "takes the other for alive", world, idle._replace(promised=0)
                else:
                    yield "own", "pushes although another owns it", world, own._replace(at="push", seen=None)
            if not takes:
                yield "own", "owns it", world, swapping
            elif world.takeovers < self.takeovers and rules.raises_first:
                yield "raise", "saves above what was promised", world, self._raised(swapping)
            elif world.takeovers < self.takeovers:
                yield "own", "takes the other for dead", world, swapping
        elif own.at == "raise":
            then = self._raised(own)._replace(at="push", order=0)
            yield "raise", "saves above what was promised", world, then
        elif rules.by_swap and world.doc != seen:
            yield "own", "was not the first", world, idle._replace(promised=0)
        else:
            number = world.checkpoints[own.target].number
            sequence = max(own.order, number if rules.promise_first else 0)
            takeovers = world.takeovers + 1 if takes else world.takeovers
            doc = Doc(who, sequence, world.writes + 1)
            after = world._replace(doc=doc, writes=world.writes + 1, takeovers=takeovers)
            late = takes and not rules.raises_first
            then = own._replace(
                at="raise" if late else "push",
                seen=None,
                order=own.order if late else 0,
                promised=sequence,
                term=takeovers if takes else own.term,
            )
            yield "own", "takes the run" if takes else "promises more", after, then

    def _raised(self, own: Mirror) -> Mirror:
        return own._replace(floor=max(own.floor, own.order)) if self.rules.raises_order else own

    # Evictions

    def _evict(self, world: World, who: int, evict: Evict) -> Iterator[tuple[str, str, World, Evict]]:
        target, rules = (evict.target,), self.rules
        before, after_look = ("look", "let go") if rules.claims_first else ("let go", "claim")
        if evict.at == "idle" and evict.times:
            for index, one in enumerate(world.checkpoints):
                if one.store == who and one.pushed and one.listed and one.bytes_here:
                    then = Evict("claim" if rules.claims_first else "look", index, evict.times - 1)
                    yield "word", f"in number {one.number}", world.change((index,), word=True), then
        elif evict.at == "claim":
            yield "claim", "", world.change(target, claim=True), evict._replace(at=before)
        elif evict.at == "look":
            one = world.checkpoints[evict.target]
            is_there = one.manifest and one.blob and not (one.mark >= 0 and rules.looks_for_mark)
            if evict.target in world.condemned:
                world = world._replace(condemned=world.condemned - {*target}, version=world.version + 1)
            yield "look", "", world, evict._replace(at=after_look if is_there else "give up")
        elif evict.at == "give up":
            yield "evict", "gives up", world.change(target, word=False, claim=False), Evict(times=evict.times)
        elif evict.at == "let go":
            yield "let go", "", world.change(target, bytes_here=False), Evict(times=evict.times)

    # Policies

    def _policy(self, world: World, who: int, policy: Policy) -> Iterator[tuple[str, str, World, Policy]]:
        rules, idle = self.rules, Policy(times=policy.times)
        if policy.at == "idle" and policy.times:
            begun = policy._replace(times=policy.times - 1)
            if rules.judges_last:
                going = self._going(world, who)
                if going:  # else it ends, and could begin again
                    yield "list", "lists", world, begun._replace(at="judge", going=going)
            else:
                yield from self._judge(world, who, begun, "list")
        elif policy.at == "judge":
            yield from self._judge(world, who, policy, "forget")
        elif policy.at == "list":
            going = self._going(world, who)
            yield "list", "lists", world, policy._replace(at="forget", going=going) if going else idle
        elif policy.at == "forget":
            evicted = {index for index in policy.going if _relies(world.checkpoints[index], who)}
            after = world.change(evicted, listed=False, word=False)
            unneeded = [
                index
                for index, one in enumerate(after.checkpoints)
                if one.store == who and one.claim and not (one.word and rules.ends_unneeded)
            ]
            after = after.change(unneeded, claim=False)
            going = policy.going - _claimed(after)
            at = "mark" if rules.marks_first else "look"
            yield "forget", "and ends claims", after, policy._replace(at=at, going=going) if going else idle
        elif policy.at == "mark":
            then = policy._replace(at="look" if rules.marks_first else "remove")
            yield "remove", "marks", world.change(policy.going, mark=who), then
        elif policy.at == "look":
            going = policy.going - _claimed(world) if rules.looks_for_claims else policy.going
            at = "remove" if rules.marks_first else "mark"
            yield "remove", "looks for claims", world, policy._replace(at=at, going=going) if going else idle
        elif policy.at == "remove":
            yield "remove", "removes the manifest", world.change(policy.going, manifest=False), idle

    def _judge(self, world: World, who: int, policy: Policy, at: str) -> Iterator[tuple[str, str, World, Policy]]:
        counts = world.doc is None or world.doc.store == who or not self.rules.judges_own
        what = "reads that it may judge" if counts else "reads that another owns the run"
        yield "judge", what, world, policy._replace(at=at) if counts else Policy(times=policy.times)

    def _going(self, world: World, who: int) -> frozenset[int]:
        there = [index for index, one in enumerate(world.checkpoints) if one.exists]
        here = [
            index
            for index, one in enumerate(world.checkpoints)
            if one.store == who and one.listed and (index in there or not self.rules.spares_pushed)
        ]

        def newest(of: list[int]) -> set[int]:
            return {*sorted(of, key=lambda index: (world.checkpoints[index].number, index))[-1:]}

        others = {index for index in _claimed(world) if world.checkpoints[index].store != who}
        return frozenset(there) - newest(there) - (newest(here) if self.rules.spares_own else set()) - others

    # The pruner

    def _prune(self, world: World, prune: Prune) -> Iterator[tuple[str, World, Prune]]:
        if prune.at == "idle" and prune.looks:
            unnamed = frozenset(index for index, one in enumerate(world.checkpoints) if self._is_unnamed(one))
            if unnamed:
                yield "looks", world, Prune("act", unnamed, world.version, prune.looks - 1)
        elif prune.at == "act":
            idle = Prune(looks=prune.looks)
            if prune.seen != world.version:
                yield "was not the first", world, idle
                return
            # As one step: a push that comes after the swap takes another name, see `remote.py`.
            removed = prune.unnamed & world.condemned
            after = world.change(removed, blob=False)._replace(
                condemned=prune.unnamed - removed, version=world.version + 1
            )
            yield "condemns, and removes what was condemned", after, idle

    def _is_unnamed(self, one: Checkpoint) -> bool:
        exists = one.manifest and (one.mark < 0 or (one.claim and self.rules.claimed_exists))
        claimed = one.claim and not one.manifest and self.rules.names_claims
        return one.blob and not exists and not claimed


def _pushed(world: World, index: int) -> World:
    condemned = world.condemned - {index}
    version = world.version + 1 if index in world.condemned else world.version
    after = world._replace(condemned=condemned, version=version)
    return after.change((index,), pushed=True, manifest=True, blob=True, mark=-1)


def _relies(one: Checkpoint, who: int) -> bool:
    return one.store == who and one.listed and not one.bytes_here


def _claimed(world: World) -> frozenset[int]:
    return frozenset(index for index, one in enumerate(world.checkpoints) if one.claim)


_FUNCTIONS = {
    "save": "ops.index.sequence.next_sequence",
    "own": "remote.mirror.ownership.Ownership.own",
    "raise": "remote.mirror.ownership.raise_order",
    "push": "remote.push.push",
    "evict": "remote.remote_only.evict.evict",
    "word": "objects.remote.remote_only.write_remote_only",
    "claim": "remote.documents.claims.write_claim",
    "look": "remote.remote_only.remote_presence.PresenceCheck.lacks",
    "let go": "remote.remote_only.evict._free_bytes",
    "list": "remote.pruning.keep_remote.KeepRemote._candidates",
    "judge": "remote.pruning.keep_remote.KeepRemote._is_responsible",
    "forget": "remote.pruning.keep_remote.KeepRemote._drop_locally",
    "remove": "remote.pruning.keep_remote.remove_there",
    "prune": "remote.pruning.needed_digests.RemoteSurvey.named",
}
