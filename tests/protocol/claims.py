"""A remote: one checkpoint that a store evicts while others remove it, prune, and push it again.

Source: docs/format/remote-v1.md, "Evict".

The evicting store has another process that removes claims that are not needed, and a user who brings the bytes back.
There are no clocks: everybody may sleep between any two requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from tests.protocol.search import Step
from tests.protocol.switches import Switches


@dataclass(frozen=True, slots=True)
class Rules(Switches):
    """Which rules clients keep."""

    word_first: bool = True  # an eviction writes elsewhere.json before its claim
    claim_first: bool = True  # and the claim before it looks at the remote
    looks_for_mark: bool = True  # and looks for the mark that the checkpoint was removed
    looks_for_blob: bool = True  # and for its blob
    strike: bool = True  # after it took the blob out of what is condemned
    same_word: bool = True  # it lets go, or takes its word back, only while elsewhere.json has its own claim
    new_name: bool = True  # each eviction draws another name for its claim
    mark_first: bool = True  # a removal writes its mark before it looks for claims
    looks_for_claim: bool = True  # and looks for them
    lists_first: bool = True  # who ends claims lists them before it looks at the store
    claimed_exists: bool = True  # a pruner takes a claimed checkpoint with a mark for one that exists
    names_claims: bool = True  # and a claim for something that names its blob
    look_again: bool = True  # and looks again after the blob is condemned


NAMES = tuple(one.name for one in fields(Rules))


class Evict(NamedTuple):
    """An eviction: where it is, the name of its claim, how many more there may be."""

    at: str = "begin"
    claim: int = 0
    again: int = 1
    seen: int = 0  # the version of what is condemned that it read


class Remove(NamedTuple):
    """A removal by another store: where it is."""

    at: str = "list"
    times: int = 1


class End(NamedTuple):
    """Another process of the evicting store, which ends claims: what it listed, and which of these it found needed."""

    at: str = "list"
    listed: frozenset[int] = frozenset()
    needed: frozenset[int] = frozenset()
    times: int = 2


class Prune(NamedTuple):
    """A pruner: where it is, the version that it read, and whether anything names the blob."""

    at: str = "read"
    seen: int = 0
    named: bool = False
    marked: bool = False  # it listed the mark, and the manifest
    passes: int = 3


class World(NamedTuple):
    """Everything.

    Attributes:
        manifest, mark, blob: Whether each is there: ``dropped`` is the mark.
        claims: Names of the claims that are there.
        condemned, version: Whether the blob is, and how often that was written.
        bytes_here: Whether the store has the bytes.
        word: The claim that its ``elsewhere.json`` names; None: there is no such file.
        returns: How often its user may still bring the bytes back.
        push: Where a push is that brings the checkpoint back by name.
    """

    manifest: bool
    mark: bool
    blob: bool
    claims: frozenset[int]
    condemned: bool
    version: int
    bytes_here: bool
    word: int | None
    returns: int
    push: str
    evicts: tuple[Evict, ...]
    remove: Remove
    end: End
    prune: Prune


@dataclass(frozen=True)
class Scenario:
    """Who takes part: for each process that evicts, how often."""

    name: str
    evictions: tuple[int, ...] = (1,)
    removals: int = 1
    endings: int = 0
    returns: int = 0
    passes: int = 0
    pushes: bool = False
    marked: bool = False  # a removal died right after its mark
    rules: Rules = field(default_factory=Rules)

    def start(self) -> World:
        """Return the world before anything happens: the checkpoint is here and there."""
        return World(
            True,
            self.marked,
            True,
            frozenset(),
            condemned=False,
            version=0,
            bytes_here=True,
            word=None,
            returns=self.returns,
            push="begin" if self.pushes else "done",
            evicts=tuple(Evict(again=count) for count in self.evictions),
            remove=Remove(times=self.removals),
            end=End(times=self.endings),
            prune=Prune(passes=self.passes),
        )

    def wrong(self, world: World) -> str:
        """Return what is bad: the store relies on something that is not there."""
        if world.bytes_here:
            return ""
        if not world.blob:
            return "the bytes are neither here nor there"
        # A removal that slept can hit the manifest that a push brought back; then the claim keeps the blobs alone.
        if not world.manifest and not self.pushes:
            return "the bytes are not here, and the checkpoint was removed there"
        return "" if world.word is not None else "the bytes are not here, and nothing says where they are"

    def steps(self, world: World) -> Iterator[Step[World]]:
        """Yield everything that may happen next."""
        for who in range(len(world.evicts)):
            yield from self._evict(world, who)
        yield from self._remove(world, world.remove)
        yield from self._end(world, world.end)
        yield from self._prune(world, world.prune)
        yield from self._push(world)
        if not world.bytes_here and world.returns:
            back = world._replace(bytes_here=True, word=None, returns=world.returns - 1)
            yield Step("user", "ops.save.restore_blobs.restore_blobs", "brings the bytes back", back)

    # The evicting store

    def _evict(self, world: World, who: int) -> Iterator[Step[World]]:
        for function, what, after, then in self._evict_steps(world, who, world.evicts[who]):
            evicts = (*world.evicts[:who], then, *world.evicts[who + 1 :])
            yield Step(f"eviction {who}", _EVICTING[function], what, after._replace(evicts=evicts))

    def _evict_steps(self, world: World, who: int, evict: Evict) -> Iterator[tuple[str, str, World, Evict]]:
        order = ["word", "claim", "read"] if self.rules.word_first else ["claim", "word", "read"]
        if not self.rules.claim_first:
            order = ["word", "read", "claim"]
        after_look = "claim" if not self.rules.claim_first else "let go"

        def following(this: str) -> str:
            position = order.index(this)
            return order[position + 1] if position + 1 < len(order) else "let go"

        if evict.at == "begin":
            if evict.again and world.bytes_here:
                claim = 10 * who + evict.again if self.rules.new_name else 1
                yield "evict", "begins", world, evict._replace(at=order[0], claim=claim, again=evict.again - 1)
        elif evict.at == "word":
            yield "word", "", world._replace(word=evict.claim), evict._replace(at=following("word"))
        elif evict.at == "claim":
            yield (
                "claim",
                "",
                world._replace(claims=world.claims | {evict.claim}),
                evict._replace(at=following("claim")),
            )
        elif evict.at == "read":
            then = evict._replace(at="strike" if self.rules.strike else "look", seen=world.version)
            yield "spare", "reads", world, then
        elif evict.at == "strike":
            if not world.condemned:
                yield "spare", "finds nothing to change", world, evict._replace(at="look")
            elif evict.seen == world.version:
                struck = world._replace(condemned=False, version=world.version + 1)
                yield "spare", "swaps", struck, evict._replace(at="look")
            else:
                yield "spare", "was not the first", world, evict._replace(at="read")
        elif evict.at == "look":
            is_there = world.manifest and not (world.mark and self.rules.looks_for_mark)
            yield "look", "for the manifest", world, evict._replace(at="look at blob" if is_there else "give up")
        elif evict.at == "look at blob":
            is_there = world.blob or not self.rules.looks_for_blob
            yield "look", "for the blob", world, evict._replace(at=after_look if is_there else "give up")
        elif evict.at == "give up":
            is_own = world.word == evict.claim or not self.rules.same_word
            after = world._replace(word=None) if is_own and world.bytes_here else world
            yield "word", "takes it back", after, evict._replace(at="begin")
        elif evict.at == "let go":
            is_own = world.word == evict.claim or not self.rules.same_word
            after = world._replace(bytes_here=False) if is_own else world
            yield "let go", "" if is_own else "not: another eviction has it", after, evict._replace(at="begin")

    def _end(self, world: World, end: End) -> Iterator[Step[World]]:
        """End claims that the store does not need."""
        if end.at == "list" and end.times:
            if self.rules.lists_first:
                listed = end._replace(at="look", listed=world.claims)
            else:
                listed = end._replace(at="late list", needed=frozenset({world.word or 0}))
            yield Step("other process", _CLAIMS, "lists claims, or looks at the store", world._replace(end=listed))
        elif end.at == "look":
            needed = frozenset({world.word or 0})
            yield Step("other process", _CLAIMS, "looks", world._replace(end=end._replace(at="delete", needed=needed)))
        elif end.at == "late list":
            listed = end._replace(at="delete", listed=world.claims)
            yield Step("other process", _CLAIMS, "lists claims late", world._replace(end=listed))
        elif end.at == "delete":
            after = world._replace(claims=world.claims - (end.listed - end.needed), end=End(times=end.times - 1))
            yield Step("other process", _CLAIMS, "removes claims", after)

    # Others at the remote

    def _remove(self, world: World, remove: Remove) -> Iterator[Step[World]]:
        mark, look = ("mark", "look") if self.rules.mark_first else ("look", "mark")

        def step(what: str, after: World, at: str, times: int = remove.times) -> Step[World]:
            return Step("removal", _REMOVING, what, after._replace(remove=Remove(at, times)))

        if remove.at == "list" and remove.times:
            yield (
                step("finds no claim", world, mark, remove.times - 1)
                if not world.claims
                else step("finds a claim", world, "list", remove.times - 1)
            )
        elif remove.at == "mark":
            yield step("writes the mark", world._replace(mark=True), look if mark == "mark" else "delete")
        elif remove.at == "look":
            claimed = bool(world.claims) and self.rules.looks_for_claim
            yield step("looks for claims", world, "list" if claimed else ("delete" if mark == "mark" else "mark"))
        elif remove.at == "delete":
            yield step("removes the manifest", world._replace(manifest=False), "list")

    def _push(self, world: World) -> Iterator[Step[World]]:
        """A push by name from a store that has the bytes: its intent keeps the blob as the model of pushes says."""
        if world.push == "begin" and world.mark and world.blob:
            yield Step(
                "push", "remote.push.Push.send_all", "takes the mark away", world._replace(mark=False, push="manifest")
            )
        elif world.push == "manifest":
            yield Step(
                "push", "remote.push.Push.send_all", "writes the manifest", world._replace(manifest=True, push="done")
            )

    def _prune(self, world: World, prune: Prune) -> Iterator[Step[World]]:
        for what, after, then in self._prune_steps(world, prune):
            yield Step("pruner", _PRUNING, what, after._replace(prune=then))

    def _prune_steps(self, world: World, prune: Prune) -> Iterator[tuple[str, World, Prune]]:
        rules = self.rules
        if prune.at == "read" and prune.passes:
            begun = Prune("manifests", world.version, passes=prune.passes - 1)
            yield "reads what is condemned", world, begun
        elif prune.at == "manifests":
            marked = world.manifest and world.mark
            named = (world.manifest and not world.mark) or world.push == "manifest"  # its intent
            yield "lists manifests", world, prune._replace(at="claims", named=named, marked=marked)
        elif prune.at == "claims":
            names = bool(world.claims) and (rules.names_claims if not prune.marked else rules.claimed_exists)
            unmarked = prune._replace(at="decide", named=prune.named or names, marked=prune.marked and not world.claims)
            yield "lists claims", world, unmarked
        elif prune.at == "decide":
            yield from self._decide(world, prune)

    def _decide(self, world: World, prune: Prune) -> Iterator[tuple[str, World, Prune]]:
        idle = Prune(passes=prune.passes)
        if prune.named or prune.seen != world.version or not world.blob:
            yield "leaves it", world, idle
        elif not world.condemned:
            after = world._replace(condemned=True, version=world.version + 1)
            yield "condemns it", after, idle if self.rules.look_again else prune._replace(seen=after.version)
        else:
            # As one step: a client that comes after the swap takes another name, as the model of pushes has it.
            yield "removes it", world._replace(condemned=False, version=world.version + 1, blob=False), idle


_CLAIMS = "remote.documents.claims.end_claims"
_REMOVING = "remote.pruning.keep_remote.KeepRemote.apply"
_PRUNING = "remote.pruning.needed_digests.RemoteSurvey.named"
_EVICTING = {
    "evict": "remote.remote_only.evict.evict",
    "word": "objects.remote.remote_only.write_remote_only",
    "claim": "remote.documents.claims.write_claim",
    "spare": "remote.documents.condemned_names.unmark_needed",
    "look": "remote.remote_only.remote_presence.PresenceCheck.lacks",
    "let go": "remote.remote_only.evict._free_bytes",
}
