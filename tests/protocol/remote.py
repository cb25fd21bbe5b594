"""A remote: one blob that pushes need, pruners that remove it, and requests that arrive late. docs/format/remote-v1.md.

There are no clocks: a pruner may take any intent for stale at any moment, and each client may sleep between any two
requests. So what holds here holds for every sleep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from tests.protocol.search import Step
from tests.protocol.switches import Switches


@dataclass(frozen=True, slots=True)
class Rules(Switches):
    """Which rules clients keep."""

    intent_first: bool = True  # a push writes its intent before it reads what is condemned
    strike: bool = True  # it takes what it needs out of that
    burn_needed: bool = True  # and uses another name for what is being removed
    commit_by_intent: bool = True  # it publishes only after changing its own intent, which a pruner may have voided
    manifest_last: bool = True  # the manifest after the blobs
    intents_before_manifests: bool = True  # a pruner lists in this order
    look_again: bool = True  # it lists both again after what is condemned was written
    version_first: bool = True  # its swap is on the version that it read before that
    own_version: bool = True  # its next swap with the same lists is on the version that it wrote last
    void_by_swap: bool = True  # a stale intent does not count only after it was voided
    finish: bool = True  # an intent that says "committing" is finished, never voided
    burn_unknown: bool = True  # a name whose removal was not acknowledged is not used again
    burn_foreign: bool = True  # nor is one of a batch whose pruner is given up
    unique_writes: bool = True  # no two writes of an object have the same bytes, and so the same mark


NAMES = tuple(one.name for one in fields(Rules))


class Doc(NamedTuple):
    """``condemned.json``, for the one blob: numbers of its names."""

    burnt: int = 0
    condemned: frozenset[int] = frozenset()
    deleting: frozenset[tuple[int, int]] = frozenset()  # pruner, number

    def going(self) -> set[int]:
        return {number for _, number in self.deleting}


class Push(NamedTuple):
    """A push: where it is, what it read, which name it uses."""

    at: str = "begin"
    seen: tuple[Doc, int] | None = None
    name: int = 0
    again: int = 0


class Prune(NamedTuple):
    """A pruner."""

    at: str = "read"
    seen: tuple[Doc, int] | None = None
    named: bool = False
    todo: tuple[int, ...] = ()  # intents that it listed and has not looked at
    passes: int = 0
    number: int = 0  # of the name that it removes
    sure: bool = False  # the removal was acknowledged, or was never sent
    others: int = 0  # swaps for other blobs that it still makes


class World(NamedTuple):
    """Everything.

    Attributes:
        blobs: Numbers of the names that are there.
        doc, version: What is condemned, and how often it was written.
        intents: For each push: nothing, uploading, committing or void.
        manifests: Pushes whose manifest is there.
        late: Numbers of names that a removal on its way will hit.
        losses: How many removals may go without an answer.
    """

    blobs: frozenset[int]
    doc: Doc
    version: int
    intents: tuple[str, ...]
    manifests: frozenset[int]
    late: frozenset[int]
    losses: int
    pushes: tuple[Push, ...]
    prunes: tuple[Prune, ...]


@dataclass(frozen=True)
class Scenario:
    """Who takes part: pushes, and for each pruner how often it goes through the remote."""

    name: str
    pushes: int
    passes: tuple[int, ...]
    losses: int = 1
    again: int = 1
    there: bool = True
    others: int = 1
    rules: Rules = field(default_factory=Rules)

    def start(self) -> World:
        """Return the world before anything happens: perhaps the blob is there, and nothing names it."""
        return World(
            frozenset({0} if self.there else ()),
            Doc(),
            0,
            ("",) * self.pushes,
            frozenset(),
            frozenset(),
            self.losses,
            tuple(Push(again=self.again) for _ in range(self.pushes)),
            tuple(Prune(passes=passes, others=self.others) for passes in self.passes),
        )

    def steps(self, world: World) -> Iterator[Step[World]]:
        """Yield everything that may happen next."""
        for number in sorted(world.late):
            after = world._replace(late=world.late - {number}, blobs=world.blobs - {number})
            yield Step("", "", f"A LATE REMOVAL of name {number} ARRIVES", after)
        for who in range(len(world.pushes)):
            yield from self._push(world, who)
        for who in range(len(world.prunes)):
            yield from self._prune(world, who)

    def wrong(self, world: World) -> str:
        """Return what is bad: a checkpoint without its blob, or one that was acknowledged and is not there."""
        if world.manifests and not world.blobs:
            return "a checkpoint is visible and its blob is missing"
        done = [who for who, push in enumerate(world.pushes) if push.at == "done" and who not in world.manifests]
        return f"push {done[0]} was acknowledged, and its checkpoint is missing" if done else ""

    def _mark(self, world: World) -> tuple[Doc, int]:
        """Return what a compare-and-swap compares: bytes that were never there before, or the bytes alone."""
        return world.doc, world.version if self.rules.unique_writes else 0

    def _written(self, world: World, doc: Doc) -> World:
        return world._replace(doc=doc, version=world.version + 1 if self.rules.unique_writes else 0)

    # A push

    def _push(self, world: World, who: int) -> Iterator[Step[World]]:
        push = world.pushes[who]
        for function, what, after, then in self._push_steps(world, who, push):
            pushes = (*world.pushes[:who], then, *world.pushes[who + 1 :])
            yield Step(f"push {who}", function, what, after._replace(pushes=pushes))

    def _push_steps(self, world: World, who: int, push: Push) -> Iterator[tuple[str, str, World, Push]]:
        rules = self.rules
        if push.at == "begin":
            first, then = ("intent", "read") if rules.intent_first else ("read", "intent")
            if first == "intent":
                yield "remote.intents.Intent.write", "", _intent(world, who, "U"), push._replace(at=then)
            else:
                yield (
                    "remote.documents.condemned_names.unmark_needed",
                    "reads",
                    world,
                    push._replace(at="swap", seen=self._mark(world)),
                )
        elif push.at == "intent":
            yield "remote.intents.Intent.write", "late", _intent(world, who, "U"), push._replace(at="list")
        elif push.at == "read":
            yield (
                "remote.documents.condemned_names.unmark_needed",
                "reads",
                world,
                push._replace(at="swap", seen=self._mark(world)),
            )
        elif push.at == "swap":
            yield self._spare(world, push)
        elif push.at == "list":
            there = push.name in world.blobs
            yield "remote.push.push", "lists blobs", world, push._replace(at=self._after_list(there=there))
        elif push.at == "upload":
            after = world._replace(blobs=world.blobs | {push.name})
            yield "remote.push.push", f"writes name {push.name}", after, push._replace(at="check")
        elif push.at == "check":
            there = push.name in world.blobs
            yield "remote.push.push", "looks once more", world, push._replace(at="commit" if there else "upload")
        elif push.at == "commit":
            yield from self._commit(world, who, push)
        elif push.at == "manifest":
            after = world._replace(manifests=world.manifests | {who})
            then = "tidy" if rules.manifest_last else "upload"
            yield "remote.push.push", "writes the manifest", after, push._replace(at=then)
        elif push.at == "tidy":
            yield "remote.push.push", "removes its intent", _intent(world, who, ""), push._replace(at="done")

    def _after_list(self, *, there: bool) -> str:
        if there:
            return "check"
        return "upload" if self.rules.manifest_last else "manifest"

    def _spare(self, world: World, push: Push) -> tuple[str, str, World, Push]:
        """Take the blob from what is condemned, if it is there."""
        function, rules = "remote.documents.condemned_names.unmark_needed", self.rules
        doc = (push.seen or self._mark(world))[0]
        then = "list" if rules.intent_first or world.intents[world.pushes.index(push)] else "intent"
        new = doc
        if rules.burn_needed and doc.burnt in doc.going():
            new = new._replace(burnt=doc.burnt + 1)
        if rules.strike:
            new = new._replace(condemned=new.condemned - {doc.burnt})
        if new == doc:
            return function, "finds nothing to change", world, push._replace(at=then, name=doc.burnt, seen=None)
        if push.seen != self._mark(world):
            return function, "was not the first", world, push._replace(at="read", seen=None)
        return function, "swaps", self._written(world, new), push._replace(at=then, name=new.burnt, seen=None)

    def _commit(self, world: World, who: int, push: Push) -> Iterator[tuple[str, str, World, Push]]:
        function, then = "remote.intents.Intent.commit", "manifest" if self.rules.manifest_last else "tidy"
        if not self.rules.commit_by_intent:
            yield function, "left out", world, push._replace(at=then)
        elif world.intents[who] == "U":
            yield function, "", _intent(world, who, "C"), push._replace(at=then)
        elif push.again:
            yield (
                function,
                "is void, begins again",
                _intent(world, who, ""),
                push._replace(at="begin", again=push.again - 1),
            )

    # A pruner

    def _prune(self, world: World, who: int) -> Iterator[Step[World]]:
        prune = world.prunes[who]
        for function, what, after, then in self._prune_steps(world, who, prune):
            prunes = (*world.prunes[:who], then, *world.prunes[who + 1 :])
            yield Step(f"pruner {who}", _PRUNING[function], what, after._replace(prunes=prunes))

    def _prune_steps(self, world: World, who: int, prune: Prune) -> Iterator[tuple[str, str, World, Prune]]:
        rules, orders = self.rules, ("intents", "manifests")
        first, second = orders if rules.intents_before_manifests else orders[::-1]
        if prune.at == "read":
            if not prune.passes:
                return
            begun = prune._replace(at=first, seen=self._mark(world), named=False, passes=prune.passes - 1)
            yield "prune", "reads what is condemned", world, begun
            for other, number in sorted(world.doc.deleting):
                if other != who:
                    yield self._burn_foreign(world, prune, (other, number))
        elif prune.at == "intents":
            listed = tuple(one for one, state in enumerate(world.intents) if state not in ("", "V"))
            then = "look" if listed else self._after("intents", second)
            yield "survey", "lists intents", world, prune._replace(at=then, todo=listed)
        elif prune.at == "look":
            yield from self._look(world, prune, second)
        elif prune.at == "finish":
            after = world._replace(manifests=world.manifests | {prune.todo[0]})
            yield "finish", "writes the manifest of a push", after, prune._replace(at="finished")
        elif prune.at == "finished":
            yield "finish", "removes its intent", _intent(world, prune.todo[0], ""), self._looked(prune, second)
        elif prune.at == "manifests":
            named = prune.named or bool(world.manifests)
            yield "survey", "lists manifests", world, prune._replace(at=self._after("manifests", second), named=named)
        elif prune.at == "decide":
            yield from self._decide(world, who, prune)
        elif prune.at == "delete":
            yield from self._delete(world, prune)
        elif prune.at == "confirm":
            yield self._confirm(world, who, prune)

    def _after(self, this: str, second: str) -> str:
        return "decide" if this == second else second

    def _looked(self, prune: Prune, second: str) -> Prune:
        todo = prune.todo[1:]
        return prune._replace(at="look" if todo else self._after("intents", second), todo=todo, named=True)

    def _look(self, world: World, prune: Prune, second: str) -> Iterator[tuple[str, str, World, Prune]]:
        """Look at one intent that was listed: it lives, is voided, or is finished."""
        who = prune.todo[0]
        yield "survey", "takes an intent for alive", world, self._looked(prune, second)
        dead = self._looked(prune, second)._replace(named=prune.named)
        if not self.rules.void_by_swap:
            yield "survey", "takes an intent for stale", world, dead
        elif world.intents[who] == "U" or (world.intents[who] == "C" and not self.rules.finish):
            yield "void", "a stale intent", _intent(world, who, "V"), dead
        elif world.intents[who] == "C":
            yield "finish", "finds a push that stopped", world, prune._replace(at="finish")

    def _decide(self, world: World, who: int, prune: Prune) -> Iterator[tuple[str, str, World, Prune]]:
        rules = self.rules
        seen = prune.seen or self._mark(world)
        if not rules.version_first:
            seen = self._mark(world)
        doc = seen[0]
        for number in sorted(world.blobs):
            if number < doc.burnt:
                after = world._replace(blobs=world.blobs - {number})
                yield "prune", f"removes name {number}, which does not count", after, prune
        idle = prune._replace(at="read", seen=None)
        current, same = doc.burnt, seen == self._mark(world)
        if prune.others and same:
            after = self._written(world, doc)
            yield "prune", "swaps for other blobs", after, self._goes_on(after, prune, others=prune.others - 1)
        if prune.named:
            new = doc._replace(condemned=doc.condemned - {current})
            yield "prune", "keeps it", self._written(world, new) if same and new != doc else world, idle
        elif not same:
            yield "prune", "was not the first", world, idle if rules.own_version else self._goes_on(world, prune)
        elif current in doc.condemned:
            new = doc._replace(condemned=doc.condemned - {current}, deleting=doc.deleting | {(who, current)})
            after = self._written(world, new)
            yield "prune", "begins a batch", after, self._goes_on(after, prune, at="delete", number=current)
        elif current not in doc.going():  # there or not: blobs are listed once, before all of this
            after = self._written(world, doc._replace(condemned=doc.condemned | {current}))
            yield "prune", "condemns it", after, idle if rules.look_again else self._goes_on(after, prune)
        else:
            yield "prune", "finds nothing", world, idle

    def _goes_on(self, world: World, prune: Prune, **changes: Any) -> Prune:
        """Return a pruner that keeps its lists after a swap."""
        return prune._replace(seen=self._mark(world), **changes)

    def _delete(self, world: World, prune: Prune) -> Iterator[tuple[str, str, World, Prune]]:
        gone = world._replace(blobs=world.blobs - {prune.number})
        yield "prune", f"removes name {prune.number}", gone, prune._replace(at="confirm", sure=True)
        yield "prune", "ends before it sends the removal", world, prune._replace(at="confirm", sure=True)
        if world.losses:
            spent = world._replace(losses=world.losses - 1)
            late = spent._replace(late=spent.late | {prune.number})
            yield "prune", "sends a removal that is late", late, prune._replace(at="confirm", sure=False)

    def _confirm(self, world: World, who: int, prune: Prune) -> tuple[str, str, World, Prune]:
        doc, then = world.doc, prune._replace(at="read", seen=None, number=0, sure=False)
        new = doc._replace(deleting=doc.deleting - {(who, prune.number)})
        if not prune.sure and self.rules.burn_unknown:
            new = new._replace(burnt=max(new.burnt, prune.number + 1))
        after = self._written(world, new) if new != doc else world
        if prune.seen == self._mark(world):  # no other pruner and no push has written it since
            then = self._goes_on(after, then, at="decide")
        return "prune", "ends its batch", after, then

    def _burn_foreign(self, world: World, prune: Prune, batch: tuple[int, int]) -> tuple[str, str, World, Prune]:
        new = world.doc._replace(deleting=world.doc.deleting - {batch})
        if self.rules.burn_foreign:
            new = new._replace(burnt=max(new.burnt, batch[1] + 1))
        return "prune", "ends the batch of another pruner", self._written(world, new), prune


_PRUNING = {
    "prune": "remote.pruning.prune.prune",
    "survey": "remote.pruning.needed_digests.RemoteSurvey.named",
    "void": "remote.pruning.intent_record.void",
    "finish": "remote.pruning.intent_record.finish",
}


def _intent(world: World, who: int, state: str) -> World:
    return world._replace(intents=(*world.intents[:who], state, *world.intents[who + 1 :]))
