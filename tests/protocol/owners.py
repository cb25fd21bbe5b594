"""The mirrors of two stores and one run at a remote: who brings checkpoints, and which numbers they have.

Source: docs/format/remote-v1.md, "Mirror of a run". There are no clocks: each store may take the other for dead at any
moment, and each may sleep between any two requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from tests.protocol.search import Step
from tests.protocol.switches import Switches


@dataclass(frozen=True, slots=True)
class Rules(Switches):
    """Which rules mirrors keep."""

    by_swap: bool = True  # the object is replaced on the version that was read, or created where there is none
    promise_first: bool = True  # a number is promised there before a checkpoint that has it is brought
    raise_on_taking: bool = True  # who takes a run over saves above what was promised
    looks_on_making: bool = True  # who makes the object looks at the checkpoints that are there
    owns_to_bring: bool = True  # a store that does not own the run brings nothing


NAMES = tuple(one.name for one in fields(Rules))


class Doc(NamedTuple):
    """``owner.json``."""

    store: int
    sequence: int
    change: int = 0


class Mirror(NamedTuple):
    """A store and its mirror.

    Attributes:
        at: Where the mirror is.
        seen: What it read, or wrote last.
        owns: Whether it wrote it.
        floor: Saves have greater numbers.
        saved: Number and moment of a save that waits to be brought.
        saves: How many more there may be.
        took: When it took the run over last; -1: never.
    """

    at: str = "idle"
    seen: Doc | None = None
    owns: bool = False
    floor: int = 0
    saved: tuple[int, int] | None = None
    saves: int = 2
    took: int = -1


class World(NamedTuple):
    """Everything: the object, how often it was written, what was brought, and when the run was taken over last.

    Of each checkpoint that was brought: its store, its number, and how many takeovers there were when it was saved.
    """

    doc: Doc | None
    writes: int
    brought: frozenset[tuple[int, int, int]]
    takeovers: int
    mirrors: tuple[Mirror, Mirror]


@dataclass(frozen=True)
class Scenario:
    """How many checkpoints are there from before, and how often each store saves."""

    name: str
    before: int = 0
    saves: tuple[int, int] = (2, 2)
    takeovers: int = 3
    rules: Rules = field(default_factory=Rules)

    def start(self) -> World:
        """Return the world before anything happens; earlier checkpoints have the numbers 1 to `before`."""
        brought = frozenset((-1, number, 0) for number in range(1, self.before + 1))
        mirrors = Mirror(saves=self.saves[0]), Mirror(saves=self.saves[1])
        return World(None, 0, brought, 0, mirrors)

    def wrong(self, world: World) -> str:
        """Return what is bad: what the owner saved since it took the run over does not come last."""
        if world.doc is None:
            return ""
        owner = world.doc.store
        own = [number for store, number, moment in world.brought if store == owner and moment == world.takeovers]
        others = [number for store, number, _ in world.brought if store != owner]
        if own and others and min(own) <= max(others):
            return f"number {min(own)} of the owner {owner} is not above {max(others)} of another store"
        return ""

    def steps(self, world: World) -> Iterator[Step[World]]:
        """Yield everything that may happen next."""
        for who in (0, 1):
            for function, what, after, then in self._steps(world, who, world.mirrors[who]):
                mirrors = (then, after.mirrors[1]) if who == 0 else (after.mirrors[0], then)
                yield Step(f"store {who}", _FUNCTIONS[function], what, after._replace(mirrors=mirrors))

    def _steps(self, world: World, who: int, own: Mirror) -> Iterator[tuple[str, str, World, Mirror]]:
        if own.saves and own.saved is None:
            number = own.floor + 1
            moment = max(own.took, 0)
            saved = own._replace(floor=number, saved=(number, moment), saves=own.saves - 1)
            yield "save", f"number {number}", world, saved
        if own.at == "idle" and own.saved is not None:
            yield "own", "reads who owns the run", world, own._replace(at="decide", seen=world.doc)
        elif own.at == "decide":
            yield from self._decide(world, who, own)
        elif own.at == "bring" and own.saved is not None:
            after = world._replace(brought=world.brought | {(who, *own.saved)})
            yield "bring", f"number {own.saved[0]}", after, own._replace(at="idle", saved=None)

    def _decide(self, world: World, who: int, own: Mirror) -> Iterator[tuple[str, str, World, Mirror]]:
        rules, seen, saved = self.rules, own.seen, own.saved or (0, 0)
        idle = own._replace(at="idle", seen=None)
        if seen is not None and seen.store != who:
            yield "own", "takes the other for alive", world, idle._replace(owns=False)
            if not rules.owns_to_bring:
                yield "own", "brings it anyway", world, own._replace(at="bring")
            if world.takeovers == self.takeovers:
                return
        same = world.doc == seen or not rules.by_swap
        takes = seen is None or seen.store != who
        promised = 0 if seen is None else seen.sequence
        there = (
            max((number for _, number, _ in world.brought), default=0) if rules.looks_on_making and seen is None else 0
        )
        if not takes and saved[0] <= promised:
            yield "own", "owns it", world, own._replace(at="bring", owns=True)
            return
        if not same:
            yield "own", "was not the first", world, idle._replace(owns=False)
            return
        wanted = max(saved[0], promised, there) if rules.promise_first else promised
        new = Doc(who, wanted, world.writes + 1)
        takeovers = world.takeovers + 1 if takes else world.takeovers
        floor = max(own.floor, promised, there) if takes and rules.raise_on_taking else own.floor
        took = takeovers if takes else own.took
        after = world._replace(doc=new, writes=world.writes + 1, takeovers=takeovers)
        yield (
            "own",
            "takes it" if takes else "promises more",
            after,
            own._replace(at="bring", seen=new, owns=True, floor=floor, took=took),
        )


_FUNCTIONS = {
    "save": "ops.index.sequence.next_sequence",
    "own": "remote.mirror.ownership.Ownership.own",
    "bring": "remote.push.push",
}
